"""The outer product of a long vector and a short one."""

import torch

CASES = {"check": [{"m": 1024, "n": 4}, {"m": 2048, "n": 16}], "search": [{"m": 8192, "n": 16}]}
SEED = "../honest/outer_products.py"


def inputs(case, generator, device):
    return tuple(torch.randn(case[size], generator=generator, device=device) for size in ("m", "n"))


def reference(x, w):
    return x[:, None] * w
