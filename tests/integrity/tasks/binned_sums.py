"""Sums of values by the bin that each is in, of sixteen, where torch operations are allowed beside kernels."""

import torch

CASES = {
    "check": [{"n": 1000}, {"n": 4096}],
    "search": [{"n": 1 << 20}],
    "confirm": [{"n": 100_003}],
}
ALLOW = "mixed"
TOLERANCE = "atomics"
SEED = "../honest/binned_sums.py"
BINS = 16


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(case["n"], **draw), torch.randint(0, BINS, (case["n"],), **draw)


def reference(x, bins):
    return torch.zeros(BINS, dtype=x.dtype, device=x.device).index_add(0, bins, x)
