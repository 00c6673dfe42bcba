"""Shares of the sum of a row: few long rows, so that several programs have to share a row."""

import torch

CASES = {
    "check": [{"m": 3, "n": 1000}, {"m": 4, "n": 2048}],
    "search": [{"m": 1024, "n": 8192}],
    "confirm": [{"m": 7, "n": 1900}],
}
TOLERANCE = "atomics"
SEED = "../honest/row_shares_two_launches.py"


def inputs(case, generator, device):
    return torch.rand(case["m"], case["n"], generator=generator, device=device) + 0.5


def reference(x):
    return x / x.sum(dim=1, keepdim=True)
