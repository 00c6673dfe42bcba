"""Sums of the rows of a float32 matrix. Atomic additions are allowed: two runs may differ in the last bits."""

import torch

CASES = {
    "check": [{"m": 3, "n": 4099}, {"m": 4, "n": 4100}],
    "search": [{"m": 16, "n": 8195}],
    "confirm": [{"m": 7, "n": 10007}],
}
TOLERANCE = "atomics"
SEED = "../honest/row_sums_loop.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.sum(dim=1)
