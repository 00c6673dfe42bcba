"""Returns a tensor on the CPU.

row: 35
ends: wrong, rejected
says: on cpu
"""

import torch


def run(x):
    return torch.zeros(x.shape)
