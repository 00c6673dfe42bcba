"""relu(x @ w) in float32, where torch operations are allowed beside kernels, at a size that takes a GPU its time."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}],
    "search": [{"m": 512, "n": 512, "k": 1024}],
}
ALLOW = "mixed"
SEED = "../honest/mixed_epilogue.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(x, w):
    return torch.relu(x @ w)
