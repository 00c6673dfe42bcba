"""Squares of several vectors."""

import torch

CASES = {
    "check": [{"sizes": [700, 64, 64]}, {"sizes": [1, 129, 5]}],
    "search": [{"sizes": [20000, 5000, 5000]}],
    "confirm": [{"sizes": [300, 300, 7]}],
}
SEED = "../honest/squares_by_addresses.py"


def inputs(case, generator, device):
    return tuple(torch.randn(size, generator=generator, device=device) for size in case["sizes"])


def reference(*vectors):
    return tuple(vector * vector for vector in vectors)
