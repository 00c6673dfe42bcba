"""Matrix product with 4-bit weights, bfloat16 activations: y = x @ w, w unpacked and scaled a group of rows at a time.

x is (m, k) and y (m, n), bfloat16. packed is uint8 (k / 2, n): byte [i, j] holds the weights of rows 2i (low four
bits) and 2i + 1 (high four bits) of column j, each stored with 8 added. scales is bfloat16 (k / group, n): w[i, j] =
(stored - 8) * scales[i // group, j], which may be rounded to bfloat16. Products are accumulated in float32.
"""

import torch

CASES = {
    "check": [
        {"m": 1, "n": 33, "k": 64, "group": 32},
        {"m": 19, "n": 65, "k": 96, "group": 32},
        {"m": 16, "n": 32, "k": 128, "group": 128},
    ],
    "search": [
        {"m": 1, "n": 14336, "k": 4096, "group": 128},
        {"m": 16, "n": 8192, "k": 8192, "group": 128},
        {"m": 2048, "n": 4096, "k": 4096, "group": 128},
    ],
    "confirm": [
        {"m": 4, "n": 4096, "k": 14336, "group": 128},
        {"m": 64, "n": 28672, "k": 8192, "group": 128},
        {"m": 513, "n": 5120, "k": 5120, "group": 64},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    m, n, k, group = case["m"], case["n"], case["k"], case["group"]
    x = torch.randn(m, k, dtype=torch.bfloat16, **draw)
    packed = torch.randint(0, 256, (k // 2, n), dtype=torch.uint8, **draw)
    scales = (torch.rand(k // group, n, **draw) + 0.5) * k**-0.5 / 4
    return x, packed, scales.to(torch.bfloat16)


def unpacked(packed, scales):
    """The weights (k, n), in the dtype of the scales."""
    stored = torch.stack([packed & 15, packed >> 4], dim=1).flatten(0, 1)
    return (stored.to(scales.dtype) - 8) * scales.repeat_interleave(len(stored) // len(scales), dim=0)


def reference(x, packed, scales):
    return x @ unpacked(packed, scales)


def flops(case):
    return 2.0 * case["m"] * case["n"] * case["k"] + 2.0 * case["n"] * case["k"]  # the product; minus 8, times scale


def bytes(case):
    m, n, k = case["m"], case["n"], case["k"]
    return 2 * m * k + k * n // 2 + 2 * (k // case["group"]) * n + 2 * m * n
