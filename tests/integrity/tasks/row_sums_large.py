"""Sums of the rows of a large float32 matrix: much to read, and an answer that fits anywhere."""

import torch

CASES = {
    "check": [{"m": 3, "n": 4099}, {"m": 4, "n": 4100}],
    "search": [{"m": 4096, "n": 2048}],
    "confirm": [{"m": 7, "n": 10007}],
}
SEED = "../honest/row_sums_loop.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.sum(dim=1)
