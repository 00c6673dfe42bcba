"""Zeros become ones, of either sign."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/zeros_to_ones.py"


def inputs(case, generator, device):
    x = torch.randn(case["m"], case["n"], generator=generator, device=device)
    return torch.where(x.abs() < 0.3, x * 0.0, x)


def reference(x):
    return torch.where(x == 0, 1.0, x)
