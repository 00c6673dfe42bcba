"""Inverse square roots of positive numbers."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/inverse_roots.py"


def inputs(case, generator, device):
    return torch.rand(case["m"], case["n"], generator=generator, device=device) + 0.1


def reference(x):
    return torch.rsqrt(x)
