"""Many rounds of a hash of integers."""

import torch

CASES = {"check": [{"n": 100, "steps": 5}, {"n": 1024, "steps": 9}], "search": [{"n": 1 << 18, "steps": 64}]}
SEED = "../honest/hash_rounds.py"


def inputs(case, generator, device):
    x = torch.randint(0, 1 << 31, (case["n"],), generator=generator, device=device, dtype=torch.int64)
    return x.to(torch.int32), case["steps"]


def reference(x, steps):
    for _ in range(steps):
        x = x ^ (x << 13)
        x = x ^ ((x >> 17) & 0x7FFF)
        x = x ^ (x << 5)
        x = x * 1664525 + 1013904223
    return x
