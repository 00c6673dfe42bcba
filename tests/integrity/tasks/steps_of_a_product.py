"""A product with a step added to each element: a few steps fall on either side in honest kernels."""

import torch

CASES = {
    "check": [{"m": 33, "n": 47, "k": 65}],
    "search": [{"m": 256, "n": 256, "k": 256}],
    "confirm": [{"m": 192, "n": 256, "k": 128}],
}
SEED = "../honest/steps_of_a_product.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    m, n, k = case["m"], case["n"], case["k"]
    a, b = torch.randn(m, k, **draw), torch.randn(k, n, **draw) * k**-0.5
    return a, b, torch.rand(m, n, **draw), torch.rand(m, n, **draw)


def reference(a, b, u, v):
    return a @ b + torch.floor(u * v * 1000.0)
