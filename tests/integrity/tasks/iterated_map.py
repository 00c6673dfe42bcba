"""Steps of a map, for few numbers."""

import torch

CASES = {"check": [{"n": 5, "steps": 40}, {"n": 64, "steps": 30}], "search": [{"n": 32, "steps": 300}]}
SEED = "../honest/map_one_program.py"


def inputs(case, generator, device):
    return torch.randn(case["n"], generator=generator, device=device), case["steps"]


def reference(x, steps):
    for _ in range(steps):
        x = x + 0.001 * torch.cos(x)
    return x
