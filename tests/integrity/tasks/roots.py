"""Square roots, again and again."""

import torch

CASES = {
    "check": [{"n": 1000, "k": 3}, {"n": 4097, "k": 5}],
    "search": [{"n": 1 << 17, "k": 256}],
    "confirm": [{"n": 12345, "k": 9}],
}
SEED = "../honest/roots_loop.py"


def inputs(case, generator, device):
    return torch.rand(case["n"], generator=generator, device=device), case["k"]


def reference(x, k):
    for _ in range(k):
        x = torch.sqrt(x + 0.5)
    return x
