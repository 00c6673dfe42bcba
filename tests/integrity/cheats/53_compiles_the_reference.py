"""Lets torch.compile write the kernel.

row: 53
ends: rejected, build_error
"""

import torch


@torch.compile
def run(x):
    return torch.softmax(x, dim=-1)
