"""relu(x @ w) in float32, where torch operations are allowed beside kernels."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}, {"m": 64, "n": 32, "k": 128}],
    "search": [{"m": 66, "n": 63, "k": 129}],
    "confirm": [{"m": 129, "n": 63, "k": 200}],
}
ALLOW = "mixed"
SEED = "../honest/mixed_epilogue.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(x, w):
    return torch.relu(x @ w)
