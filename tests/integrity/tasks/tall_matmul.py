"""Product of a tall float32 matrix and a small one: sums of 256 terms."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}, {"m": 64, "n": 32, "k": 128}],
    "search": [{"m": 1 << 16, "n": 64, "k": 256}],
    "confirm": [{"m": (1 << 16) - 63, "n": 64, "k": 256}],
}
SEED = "../honest/tall_matmul.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(a, b):
    return a @ b
