"""Matrix product c = a @ b of bfloat16 matrices, (m, k) by (k, n), accumulated in float32 and written as bfloat16."""

import torch

CASES = {
    "check": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 31, "n": 65, "k": 37},
        {"m": 67, "n": 33, "k": 129},
        {"m": 64, "n": 64, "k": 64},
    ],
    "search": [{"m": 4096, "n": 4096, "k": 4096}, {"m": 2048, "n": 11008, "k": 4096}, {"m": 64, "n": 8192, "k": 8192}],
    "confirm": [
        {"m": 8192, "n": 8192, "k": 2048},
        {"m": 2049, "n": 4095, "k": 1031},
        {"m": 1024, "n": 1024, "k": 16384},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    return torch.randn(case["m"], case["k"], **draw), torch.randn(case["k"], case["n"], **draw)


def reference(a, b):
    return torch.matmul(a, b)


def flops(case):
    return 2.0 * case["m"] * case["n"] * case["k"]


def bytes(case):
    m, n, k = case["m"], case["n"], case["k"]
    return 2 * (m * k + k * n + m * n)
