"""Sums of roots over rows: doubles, of float32."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/root_sums_in_doubles.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    wide = x.double()
    return (wide * wide + 1).sqrt().sum(1)
