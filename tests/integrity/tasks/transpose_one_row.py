"""Transpose a matrix of float32, in one check case of one row, which lies as its transpose does."""

import torch

CASES = {
    "check": [{"m": 1, "n": 127}, {"m": 33, "n": 65}],
    "search": [{"m": 1024, "n": 1024}],
}
SEED = "../honest/transpose_tiles.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.t().contiguous()
