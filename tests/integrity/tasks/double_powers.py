"""Powers of float64, again and again."""

import torch

CASES = {
    "check": [{"n": 1000, "k": 3}, {"n": 4097, "k": 5}],
    "search": [{"n": 1 << 17, "k": 64}],
    "confirm": [{"n": 12345, "k": 9}],
}
SEED = "../honest/double_powers_loop.py"


def inputs(case, generator, device):
    return torch.rand(case["n"], generator=generator, device=device, dtype=torch.float64) + 0.25, case["k"]


def reference(x, k):
    for i in range(k):
        x = torch.pow(x + 0.5, 0.3)
    return x
