"""Floors as integers."""

import torch

CASES = {"check": [{"n": 1000}, {"n": 4097}], "search": [{"n": 1 << 13}], "confirm": [{"n": 5003}]}
SEED = "../honest/floors.py"


def inputs(case, generator, device):
    return 10 * torch.randn(case["n"], generator=generator, device=device)


def reference(x):
    return torch.floor(x).int()
