"""Product of two float32 matrices, at a size that takes a GPU its time."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}, {"m": 64, "n": 32, "k": 128}],
    "search": [{"m": 1024, "n": 256, "k": 1024}],
    "confirm": [{"m": 129, "n": 63, "k": 200}],
}
SEED = "../honest/matmul_tiles.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(a, b):
    return a @ b
