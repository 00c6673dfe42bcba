"""How many of the two lowest bits of a random number are set, summed over many steps of its generator."""

import torch

CASES = {"check": [{"n": 100, "steps": 5}, {"n": 1024, "steps": 9}], "search": [{"n": 1 << 18, "steps": 64}]}
SEED = "../honest/bits_of_pairs_by_shifts.py"


def inputs(case, generator, device):
    x = torch.randint(0, 1 << 31, (case["n"],), generator=generator, device=device, dtype=torch.int64)
    return x.to(torch.int32), case["steps"]


def reference(x, steps):
    count = torch.zeros_like(x)
    for _ in range(steps):
        x = x * 1664525 + 1013904223
        count = count + (x & 1) + ((x >> 1) & 1)
    return count
