"""y = -x at sizes of the row kernels: the least time in which so much is read and written (docs/results/h200.md)."""

import torch

CASES = {
    "check": [{"m": 3, "n": 1031}],
    "search": [{"m": 4096, "n": 4096}, {"m": 16384, "n": 1000}, {"m": 16384, "n": 768}],
}


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return -x


def bytes(case):
    return 2 * 4 * case["m"] * case["n"]
