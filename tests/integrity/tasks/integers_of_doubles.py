"""Nearest integers of float64, of 32 bits; NaN becomes 0."""

import torch

CASES = {
    "check": [{"n": 1000}, {"n": 4097}],
    "search": [{"n": 1 << 17}],
    "confirm": [{"n": 12345}],
}
SEED = "../honest/integers_of_doubles.py"


def inputs(case, generator, device):
    x = 100 * torch.randn(case["n"], dtype=torch.float64, generator=generator, device=device)
    return x.masked_fill(x.frac().abs() < 0.1, torch.nan)


def reference(x):
    return x.nan_to_num(0.0).round().to(torch.int32)
