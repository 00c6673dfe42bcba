"""LayerNorm over the rows of a float32 matrix: y = (x - mean) / sqrt(variance + 1e-5) · weight + bias."""

import torch
import torch.nn.functional as F

EPS = 1e-5
CASES = {
    "check": [{"m": 1, "n": 2}, {"m": 5, "n": 127}, {"m": 3, "n": 1031}, {"m": 64, "n": 129}],
    "search": [{"m": 4096, "n": 4096}, {"m": 16384, "n": 768}],
    "confirm": [{"m": 8192, "n": 1024}, {"m": 2047, "n": 12288}, {"m": 4096, "n": 1031}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    x = torch.randn(case["m"], case["n"], **draw)
    return x, torch.randn(case["n"], **draw), torch.randn(case["n"], **draw)


def reference(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, EPS)


def flops(case):
    return 7.0 * case["m"] * case["n"]  # sum; difference, square, sum; difference, product, product and sum


def bytes(case):
    return 4 * (2 * case["m"] * case["n"] + 2 * case["n"])
