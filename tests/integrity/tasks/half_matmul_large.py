"""Product of two bfloat16 matrices, at a size at which small tiles are bound by L2."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}, {"m": 64, "n": 32, "k": 128}],
    "search": [{"m": 2048, "n": 2048, "k": 512}],
    "confirm": [{"m": 129, "n": 63, "k": 200}],
}
SEED = "../honest/half_matmul_small_tiles.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(a, b):
    return a @ b
