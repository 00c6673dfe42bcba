"""Maxima of rows of integers, and where they are."""

import torch

CASES = {"check": [{"m": 5, "n": 127}, {"m": 16, "n": 512}], "search": [{"m": 256, "n": 1024}]}
SEED = "../honest/integer_maxima.py"


def inputs(case, generator, device):
    shape = case["m"], case["n"]
    return torch.randint(-1000, 1000, shape, dtype=torch.int32, generator=generator, device=device)


def reference(x):
    return x.amax(-1), x.argmax(-1)
