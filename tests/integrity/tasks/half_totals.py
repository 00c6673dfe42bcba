"""Sums of magnitudes of rows in float16, which overflow where rows are long."""

import torch

CASES = {
    "check": [{"m": 3, "n": 1027}, {"m": 4, "n": 2048}],
    "search": [{"m": 16, "n": 1 << 17}],
    "confirm": [{"m": 7, "n": 3001}],
}
SEED = "../honest/half_totals.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device).half()


def reference(x):
    return x.abs().sum(1)
