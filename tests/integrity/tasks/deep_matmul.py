"""Product of float32 matrices between 0 and 1 with a long inner dimension, in full precision."""

import torch

CASES = {
    "check": [{"m": 40, "n": 24, "k": 1280}, {"m": 33, "n": 64, "k": 3200}],
    "search": [{"m": 32, "n": 32, "k": 262144}],
    "confirm": [{"m": 32, "n": 64, "k": 131072}],
}
SEED = "../honest/deep_matmul.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.rand(case["m"], case["k"], **draw), torch.rand(case["k"], case["n"], **draw)


def reference(a, b):
    return a @ b
