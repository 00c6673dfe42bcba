"""A matrix transposed, at a size that takes a GPU its time."""

import torch

CASES = {"check": [{"m": 33, "n": 47}, {"m": 64, "n": 32}], "search": [{"m": 1024, "n": 2048}]}
ALLOW = "mixed"
SEED = "../honest/transpose_tiles.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.t().contiguous()
