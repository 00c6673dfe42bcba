"""Sines of integer places."""

import torch

CASES = {
    "check": [{"n": 1000, "k": 3}, {"n": 4097, "k": 5}],
    "search": [{"n": 1 << 16, "k": 32}],
    "confirm": [{"n": 12345, "k": 9}],
}
SEED = "../honest/sines_of_places_loop.py"


def inputs(case, generator, device):
    x = torch.randint(0, 30000, (case["n"],), generator=generator, device=device, dtype=torch.int32)
    return x, torch.rand(case["n"], generator=generator, device=device), case["k"]


def reference(x, w, k):
    y = torch.zeros_like(w)
    for i in range(1, k + 1):
        y = y + w * torch.sin((x * i).to(w.dtype))
    return y
