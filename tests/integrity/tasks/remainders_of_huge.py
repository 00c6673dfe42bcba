"""Remainders of x * 2^900."""

import torch

CASES = {"check": [{"n": 1000}, {"n": 4097}], "search": [{"n": 1 << 18}], "confirm": [{"n": 12345}]}
SEED = "../honest/remainders_of_huge.py"


def inputs(case, generator, device):
    shape, draw = (case["n"],), {"generator": generator, "device": device, "dtype": torch.int32}
    return torch.randint(2, 1 << 20, shape, **draw), torch.randint(2, 1 << 20, shape, **draw)


def reference(x, m):
    m = m.long()
    r, p = x.long() % m, torch.full_like(m, 2)
    for bit in range(10):
        if 900 >> bit & 1:
            r = r * p % m
        p = p * p % m
    return r.int()
