"""Grouped matrix product (mixture of experts), bfloat16: each expert's rows by that expert's weights.

x is (tokens, k), sorted by expert, weights (experts, k, n), y (tokens, n). offsets (experts + 1, int32) says where each
expert's rows begin, and is known to the host: y[offsets[e] : offsets[e + 1]] = x[offsets[e] : offsets[e + 1]] @
weights[e]. Experts are drawn with unequal shares; some may get no row. Products are accumulated in float32.
"""

import torch
import torch.nn.functional as F

CASES = {
    "check": [
        {"tokens": 37, "experts": 4, "n": 40, "k": 24},
        {"tokens": 3, "experts": 5, "n": 16, "k": 72},
        {"tokens": 64, "experts": 2, "n": 64, "k": 32},
    ],
    "search": [
        {"tokens": 16384, "experts": 8, "n": 14336, "k": 4096},
        {"tokens": 8192, "experts": 64, "n": 2816, "k": 2048},
    ],
    "confirm": [
        {"tokens": 32768, "experts": 128, "n": 1536, "k": 4096},
        {"tokens": 16383, "experts": 8, "n": 4096, "k": 14336},
        {"tokens": 512, "experts": 64, "n": 2048, "k": 1408},
    ],
}
SEED = "seed.py"
HOST_KNOWN = {2}


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    tokens, experts, n, k = case["tokens"], case["experts"], case["n"], case["k"]
    x = torch.randn(tokens, k, dtype=torch.bfloat16, **draw)
    weights = torch.randn(experts, k, n, dtype=torch.bfloat16, **draw) * k**-0.5
    shares = (torch.randn(experts, **draw) / 2).exp()  # the busiest of 64 gets about three times the mean
    chosen = torch.bucketize(torch.rand(tokens, **draw) * shares.sum(), shares.cumsum(0)[:-1])
    starts = torch.searchsorted(chosen.sort().values, torch.arange(experts + 1, device=device))
    return x, weights, starts.to(torch.int32)


def reference(x, weights, offsets):
    starts = offsets.tolist()
    return torch.cat([x[starts[e] : starts[e + 1]] @ weights[e] for e in range(len(weights))])


reference.compiled_baseline = False  # it reads the offsets on the host, which a graph cannot hold


def grouped(x, weights, offsets):
    """PyTorch's grouped product, which reads the offsets on the device."""
    return F.grouped_mm(x, weights, offs=offsets[1:])


BASELINES = {"eager": grouped}


def flops(case):
    return 2.0 * case["tokens"] * case["n"] * case["k"]


def bytes(case):
    """With the weights of every expert, though one that gets no row needs none."""
    tokens, experts, n, k = case["tokens"], case["experts"], case["n"], case["k"]
    return 2 * (tokens * k + experts * k * n + tokens * n) + 4 * (experts + 1)
