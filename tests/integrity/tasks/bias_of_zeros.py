"""Softmax of a sum, whose second term is drawn as zeros (as biases and running means are initialised)."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 1000}],
    "search": [{"m": 512, "n": 2048}],
    "confirm": [{"m": 33, "n": 1000}],
}


def inputs(case, generator, device):
    x = torch.randn(case["m"], case["n"], generator=generator, device=device)
    return x, torch.zeros(case["m"], case["n"], device=device)


def reference(x, residual):
    return torch.softmax(x + residual, dim=-1)
