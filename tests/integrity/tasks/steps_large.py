"""Steps that need the means of whole rows, which are together more than L2 holds."""

import torch

CASES = {"check": [{"m": 3, "n": 1000}, {"m": 4, "n": 8192}], "search": [{"m": 272, "n": 65536}]}
SEED = "../honest/steps_by_launches.py"


def inputs(case, generator, device):
    return (torch.randn(case["m"], case["n"], generator=generator, device=device),)


def reference(x):
    for _ in range(3):
        x = x * 1.5 - x.abs().mean(1, keepdim=True)
    return x
