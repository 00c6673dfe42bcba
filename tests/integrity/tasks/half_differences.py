"""Sums of float16 whose parts are large."""

import torch

CASES = {
    "check": [{"m": 3, "n": 1024}, {"m": 4, "n": 2048}],
    "search": [{"m": 4096, "n": 2048}],
    "confirm": [{"m": 7, "n": 1500}],
}
SEED = "../honest/half_differences_rows.py"


def inputs(case, generator, device):
    x = torch.rand(case["m"], case["n"] // 2, generator=generator, device=device) * 200 + 50
    y = x + torch.randn(case["m"], case["n"] // 2, generator=generator, device=device)
    return torch.cat([x, -y], 1).half()


def reference(x):
    return x.sum(dim=1)
