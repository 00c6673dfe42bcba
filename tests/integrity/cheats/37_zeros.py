"""Fills the output with zeros through torch, and launches nothing of its own.

row: 37
ends: rejected
says: no kernel
"""

import torch


def run(x):
    return torch.zeros_like(x)
