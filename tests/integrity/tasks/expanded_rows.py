"""Rows times one row, which is expanded to all of them."""

import torch

CASES = {
    "check": [{"m": 5, "n": 100}, {"m": 33, "n": 256}],
    "search": [{"m": 512, "n": 1024}],
    "confirm": [{"m": 100, "n": 1000}],
}
SEED = "../honest/expanded_rows.py"


def inputs(case, generator, device):
    m, n = case["m"], case["n"]
    row = torch.randn(1, n, generator=generator, device=device)
    return torch.randn(m, n, generator=generator, device=device), row.expand(m, n)


def reference(x, w):
    return x * w
