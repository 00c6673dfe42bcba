"""Residual sum and RMSNorm over rows, bfloat16: h = x + residual, y[i, j] = h[i, j] * weight[j] / rms of row i of h.

Returned are y and h, both (m, n); the rms is sqrt(mean over k of h[i, k]^2 + 1e-6). Sums are float32; whether y comes
from h before or after it is rounded is left open.
"""

import torch
import torch.nn.functional as F

EPS = 1e-6
CASES = {
    "check": [{"m": 1, "n": 3}, {"m": 5, "n": 127}, {"m": 3, "n": 1031}],
    "search": [{"m": 8192, "n": 4096}, {"m": 4096, "n": 8192}],
    "confirm": [{"m": 16384, "n": 2048}, {"m": 4097, "n": 5120}, {"m": 64, "n": 8192}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    shape = (case["m"], case["n"])
    return torch.randn(shape, **draw), torch.randn(shape, **draw), torch.randn(case["n"], **draw)


def reference(x, residual, weight):
    h = x + residual
    return F.rms_norm(h, (h.shape[-1],), weight, EPS), h


def flops(case):
    return 5.0 * case["m"] * case["n"]  # residual, square, sum, two products


def bytes(case):
    return 2 * (4 * case["m"] * case["n"] + case["n"])
