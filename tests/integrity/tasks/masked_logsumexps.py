"""Log-sum-exp of rows of masked logits: those that are masked are -inf, or the lowest number."""

import torch

CASES = {"check": [{"m": 5, "n": 127}, {"m": 16, "n": 512}], "search": [{"m": 256, "n": 1024}]}
SEED = "../honest/masked_logsumexps.py"


def inputs(case, generator, device):
    draw, shape = {"generator": generator, "device": device}, (case["m"], case["n"])
    masked, lowest = (torch.rand(shape, **draw) < 0.3 for _ in range(2))
    bias = torch.zeros(shape, device=device).masked_fill(lowest, torch.finfo(torch.float32).min)
    return torch.randn(shape, **draw).masked_fill(masked, float("-inf")), bias


def reference(x, bias):
    return torch.logsumexp(x + bias, -1)
