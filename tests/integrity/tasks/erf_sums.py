"""Sums of rows of a function that takes more arithmetic than memory."""

import torch

CASES = {
    "check": [{"m": 3, "n": 515}, {"m": 4, "n": 1024}],
    "search": [{"m": 512, "n": 2048}],
    "confirm": [{"m": 5, "n": 300}],
}
SEED = "../honest/erf_sums_loop.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return (x * (torch.erf(torch.exp(-x * x)) + torch.erf(x * 0.5) + torch.erf(x * 0.25))).sum(1)
