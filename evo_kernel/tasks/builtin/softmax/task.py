"""Softmax over the rows of a float32 matrix: y[i, j] = exp(x[i, j]) / sum over k of exp(x[i, k])."""

import torch

CASES = {
    "check": [{"m": 1, "n": 1}, {"m": 5, "n": 127}, {"m": 3, "n": 1031}, {"m": 64, "n": 129}],
    "search": [{"m": 4096, "n": 4096}, {"m": 16384, "n": 1000}],
    "confirm": [{"m": 2048, "n": 8192}, {"m": 8191, "n": 2047}, {"m": 127, "n": 50257}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return torch.softmax(x, dim=-1)


def flops(case):
    return 5.0 * case["m"] * case["n"]  # maximum, difference, exponential, sum, division


def bytes(case):
    return 2 * 4 * case["m"] * case["n"]
