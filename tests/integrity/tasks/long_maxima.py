"""Maxima of rows, which are longer where they are timed."""

import torch

CASES = {"check": [{"m": 5, "n": 127}, {"m": 16, "n": 512}], "search": [{"m": 256, "n": 4096}]}
SEED = "../honest/long_maxima.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.amax(-1)
