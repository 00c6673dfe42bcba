"""Sines of small angles, added up."""

import torch

CASES = {
    "check": [{"n": 1000, "k": 3}, {"n": 4097, "k": 5}],
    "search": [{"n": 1 << 16, "k": 32}],
    "confirm": [{"n": 12345, "k": 9}],
}
SEED = "../honest/small_angles_loop.py"


def inputs(case, generator, device):
    x = torch.randn(case["n"], generator=generator, device=device) * 1e-5
    return x, case["k"]


def reference(x, k):
    y = torch.zeros_like(x)
    for i in range(1, k + 1):
        y = y + torch.sin(x * i)
    return y
