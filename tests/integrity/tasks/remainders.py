"""Generators of numbers of 64 bits by remainders."""

import torch

CASES = {"check": [{"n": 100, "steps": 5}, {"n": 1024, "steps": 9}], "search": [{"n": 1 << 16, "steps": 32}]}
SEED = "../honest/remainder_by_floats.py"


def inputs(case, generator, device):
    x = torch.randint(1 << 40, 1 << 50, (case["n"],), generator=generator, device=device, dtype=torch.int64)
    return x, case["steps"]


def reference(x, steps):
    for i in range(steps):
        x = (x % (1099511627689 + 2 * i)) * 4194301 + 7919 * 1048576
    return x
