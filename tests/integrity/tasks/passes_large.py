"""Means of distances to the last one, along rows that are together more than L2 holds."""

import torch

CASES = {"check": [{"m": 3, "n": 1000}, {"m": 4, "n": 2048}], "search": [{"m": 272, "n": 65536}]}
SEED = "../honest/passes_by_launches.py"


def inputs(case, generator, device):
    return (torch.randn(case["m"], case["n"], generator=generator, device=device),)


def reference(x):
    t = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
    for _ in range(2):
        t = (x - t).abs().mean(1, keepdim=True)
    return t[:, 0]
