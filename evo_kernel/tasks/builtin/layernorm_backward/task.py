"""LayerNorm over rows, backward, float32: gradients of x, weight and bias from x, weight, dy and rows' statistics.

x and dy are (m, n), weight (n); mean and rstd are (m), the mean of each row and 1 / sqrt(its variance + 1e-5) as the
forward pass left them. With u = (x - mean) * rstd and g = dy * weight, the gradients are dx = rstd * (g - mean over a
row of g - u * mean over a row of g * u), dweight = sum over rows of dy * u, and dbias = sum over rows of dy.
"""

import torch

EPS = 1e-5
CASES = {
    "check": [{"m": 2, "n": 3}, {"m": 5, "n": 127}, {"m": 37, "n": 65}],
    "search": [{"m": 8192, "n": 4096}, {"m": 16384, "n": 1024}],
    "confirm": [{"m": 32768, "n": 768}, {"m": 4097, "n": 5120}, {"m": 2048, "n": 16384}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    x, dy = torch.randn(case["m"], case["n"], **draw), torch.randn(case["m"], case["n"], **draw)
    rstd = torch.rsqrt(x.var(-1, correction=0) + EPS)
    return x, torch.randn(case["n"], **draw), dy, x.mean(-1), rstd


def reference(x, weight, dy, mean, rstd):
    u = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    dx = rstd[:, None] * (g - g.mean(-1, keepdim=True) - u * (g * u).mean(-1, keepdim=True))
    return dx, (dy * u).sum(0), dy.sum(0)


def fused(x, weight, dy, mean, rstd):
    """PyTorch's own kernels, which autograd runs."""
    statistics = mean[:, None], rstd[:, None]
    return torch.ops.aten.native_layer_norm_backward(dy, x, [x.shape[-1]], *statistics, weight, weight, [True] * 3)


BASELINES = {"eager": reference, "fused": fused}


def flops(case):
    # u (2), g, its sum, g * u and its sum, four for dx, dy * u and its sum, the sum of dy
    return 13.0 * case["m"] * case["n"]


def bytes(case):
    return 4 * (3 * case["m"] * case["n"] + 3 * case["n"] + 2 * case["m"])
