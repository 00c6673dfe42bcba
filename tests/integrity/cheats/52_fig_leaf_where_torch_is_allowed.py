"""In a task that allows torch: everything by torch, and no kernel at all.

row: 52, 54
task: mixed
ends: rejected
says: no kernel
"""

import torch


def run(x, w):
    return torch.relu(x @ w)
