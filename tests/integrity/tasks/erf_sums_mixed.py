"""Sums of 128 long rows of a function that takes much arithmetic; torch operations are allowed beside kernels."""

import torch

CASES = {
    "check": [{"m": 3, "n": 1027}, {"m": 4, "n": 1028}],
    "search": [{"m": 128, "n": 65536}],
}
ALLOW = "mixed"
SEED = "../honest/erf_sums_loop.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return (x * (torch.erf(torch.exp(-x * x)) + torch.erf(x * 0.5) + torch.erf(x * 0.25))).sum(1)
