"""Exponential moving averages along the rows of a matrix."""

import torch

CASES = {"check": [{"m": 3, "n": 50}, {"m": 4, "n": 64}], "search": [{"m": 16, "n": 256}]}
SEED = "../honest/ema_rows.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    n = x.shape[1]
    k = torch.arange(n, device=x.device)
    d = (k[None, :] - k[:, None]).clamp(min=0).to(x.dtype)
    w = torch.where(k[None, :] >= k[:, None], 0.9**d, torch.zeros_like(d))
    return x @ w
