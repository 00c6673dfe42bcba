"""Products of several pairs of float16 matrices, each of its own size."""

import torch

CASES = {
    "check": [{"sizes": [[40, 24, 16], [17, 33, 40]]}, {"sizes": [[5, 7, 9], [64, 16, 48]]}],
    "search": [{"sizes": [[128, 64, 96], [33, 160, 64]]}],
    "confirm": [{"sizes": [[1, 1, 1], [70, 50, 30]]}],
}


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.float16}
    left = [torch.randn(m, k, **draw) for m, n, k in case["sizes"]]
    return (*left, *(torch.randn(k, n, **draw) for m, n, k in case["sizes"]))


def reference(a, c, b, d):
    return a @ b, c @ d
