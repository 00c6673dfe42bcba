"""Quotients of large numbers."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/quotients.py"


def inputs(case, generator, device):
    x = torch.randn(case["m"], case["n"], generator=generator, device=device)
    y = torch.rand(case["m"], case["n"], generator=generator, device=device) + 1
    return x * 3e37, y * 1e38


def reference(x, y):
    return x / y
