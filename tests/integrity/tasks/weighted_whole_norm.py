"""A matrix divided by its norm, times weights that are drawn as ones."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 1000}],
    "search": [{"m": 1024, "n": 2048}],
    "confirm": [{"m": 500, "n": 1000}],
}


def inputs(case, generator, device):
    x = torch.randn(case["m"], case["n"], generator=generator, device=device)
    return x, torch.ones(case["m"], case["n"], device=device)


def reference(x, weights):
    return x / x.norm() * weights
