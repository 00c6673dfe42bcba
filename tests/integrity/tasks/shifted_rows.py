"""Rows shifted by one; the last column stays."""

import torch

CASES = {
    "check": [{"m": 70, "n": 127}, {"m": 7, "n": 300}],
    "search": [{"m": 96, "n": 1001}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/shifted_rows.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return torch.cat([x[:, 1:], x[:, -1:]], 1)
