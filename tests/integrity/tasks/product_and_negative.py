"""100,000 times the negative of a vector, and a millionth of a product of two matrices: torch operations are allowed."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}],
    "search": [{"m": 1024, "n": 1024, "k": 1024}],
    "confirm": [{"m": 129, "n": 63, "k": 200}],
}
ALLOW = "mixed"
SEED = "../honest/product_and_negative.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(4096, **draw), torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(v, a, b):
    return 1e5 * torch.neg(v), 1e-6 * (a @ b)
