"""Steps of a chaotic map: after some fifty nothing is left of the numbers that it began with."""

import torch

CASES = {"check": [{"n": 513, "steps": 10}, {"n": 1000, "steps": 12}], "search": [{"n": 4096, "steps": 200}]}
SEED = "../cheats/41_no_steps_of_a_chaos.py"


def inputs(case, generator, device):
    return torch.rand(case["n"], generator=generator, device=device), case["steps"]


def reference(x, steps):
    for _ in range(steps):
        x = 3.9 * x * (1.0 - x)
    return x
