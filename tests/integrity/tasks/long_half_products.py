"""Product of two float16 matrices of positive numbers; many terms a sum."""

import torch

CASES = {
    "check": [{"m": 32, "n": 48, "k": 16384}, {"m": 16, "n": 16, "k": 8192}],
    "search": [{"m": 64, "n": 64, "k": 16384}],
}
SEED = "../honest/long_half_products.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.rand(case["m"], case["k"], **draw).half(), torch.rand(case["k"], case["n"], **draw).half()


def reference(a, b):
    return a @ b
