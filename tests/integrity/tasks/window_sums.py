"""Sums of windows that overlap: of a series, and of its every second place with gaps between."""

import torch

CASES = {
    "check": [{"n": 50, "k": 5}, {"n": 260, "k": 8}],
    "search": [{"n": 1 << 16, "k": 16}],
    "confirm": [{"n": 1000, "k": 7}],
}
SEED = "../honest/window_sums.py"


def inputs(case, generator, device):
    n, k = case["n"], case["k"]
    series, sparse = (torch.randn(size, generator=generator, device=device) for size in (n + k - 1, 2 * (n + k - 1)))
    return series.unfold(0, k, 1), sparse[::2].unfold(0, k, 1)


def reference(x, w):
    return (x * w).sum(1)
