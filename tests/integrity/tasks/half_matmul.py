"""Product of two bfloat16 matrices. Sizes are multiples of 16, as tensor descriptors want their rows."""

import torch

CASES = {
    "check": [{"m": 33, "n": 48, "k": 80}, {"m": 16, "n": 32, "k": 3072}],
    "search": [{"m": 80, "n": 64, "k": 144}],
    "confirm": [{"m": 127, "n": 64, "k": 208}],
}
SEED = "../honest/half_matmul_tiles.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(a, b):
    return a @ b
