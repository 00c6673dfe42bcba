"""RMSNorm of each head of queries and keys, bfloat16: rows as short as a head, x · weight / sqrt(mean of x² + 1e-6).

q is (batch, length, heads, d), k (batch, length, key heads, d), a weight of d numbers for each. Returned are the
normalised q and the normalised k; means are float32.
"""

import torch
import torch.nn.functional as F

EPS = 1e-6
CASES = {
    "check": [
        {"b": 1, "s": 1, "h": 1, "hk": 1, "d": 8},
        {"b": 2, "s": 7, "h": 3, "hk": 1, "d": 64},
        {"b": 1, "s": 5, "h": 4, "hk": 2, "d": 96},
        {"b": 3, "s": 11, "h": 2, "hk": 2, "d": 128},
    ],
    "search": [{"b": 4, "s": 4096, "h": 32, "hk": 8, "d": 128}, {"b": 1, "s": 16384, "h": 16, "hk": 16, "d": 64}],
    "confirm": [
        {"b": 1, "s": 8192, "h": 64, "hk": 8, "d": 128},
        {"b": 8, "s": 2047, "h": 32, "hk": 4, "d": 128},
        {"b": 2, "s": 8192, "h": 16, "hk": 8, "d": 256},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    q = torch.randn(case["b"], case["s"], case["h"], case["d"], **draw)
    k = torch.randn(case["b"], case["s"], case["hk"], case["d"], **draw)
    return q, k, torch.randn(case["d"], **draw), torch.randn(case["d"], **draw)


def reference(q, k, q_weight, k_weight):
    return F.rms_norm(q, (q.shape[-1],), q_weight, EPS), F.rms_norm(k, (k.shape[-1],), k_weight, EPS)


def eager(q, k, q_weight, k_weight):
    pairs = ((q, q_weight), (k, k_weight))
    return tuple(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight for x, weight in pairs)


BASELINES = {"eager": eager, "rms_norm": reference}


def elements_of(case):
    return case["b"] * case["s"] * (case["h"] + case["hk"]) * case["d"]


def flops(case):
    return 4.0 * elements_of(case)  # square, sum, two products


def bytes(case):
    return 2 * 2 * elements_of(case) + 2 * 2 * case["d"]
