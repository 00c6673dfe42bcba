"""Twice the logarithm of the gamma function of 64-bit floats, where torch operations are allowed beside kernels."""

import torch

CASES = {"check": [{"n": 1000}, {"n": 5000}], "search": [{"n": 1 << 19}]}
ALLOW = "mixed"
SEED = "../honest/gamma_of_doubles.py"


def inputs(case, generator, device):
    return (torch.rand(case["n"], generator=generator, device=device, dtype=torch.float64) * 10 + 0.1,)


def reference(x):
    return torch.lgamma(x) * 2
