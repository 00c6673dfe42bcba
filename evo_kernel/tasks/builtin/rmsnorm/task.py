"""RMSNorm over the rows of a bfloat16 matrix: y[i, j] = x[i, j] · weight[j] / sqrt(mean over k of x[i, k]² + 1e-6)."""

import torch
import torch.nn.functional as F

EPS = 1e-6
CASES = {
    "check": [{"m": 1, "n": 1}, {"m": 5, "n": 127}, {"m": 3, "n": 1031}, {"m": 64, "n": 129}],
    "search": [{"m": 8192, "n": 4096}, {"m": 4096, "n": 8192}],
    "confirm": [{"m": 16384, "n": 2048}, {"m": 4097, "n": 5120}, {"m": 2048, "n": 1031}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    return torch.randn(case["m"], case["n"], **draw), torch.randn(case["n"], **draw)


def eager(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def reference(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


BASELINES = {"eager": eager, "rms_norm": reference}


def flops(case):
    return 4.0 * case["m"] * case["n"]  # square, sum, two products


def bytes(case):
    return 2 * (2 * case["m"] * case["n"] + case["n"])
