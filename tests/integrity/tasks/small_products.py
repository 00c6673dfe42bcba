"""Sums of products that are denormal numbers, scaled up."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/small_products.py"
TOLERANCE = "atomics"


def inputs(case, generator, device):
    return torch.rand(case["m"], case["n"], generator=generator, device=device) + 0.5


def reference(x):
    return (x * 1e-20 * 1e-20).sum(1) * 1e20 * 1e15
