"""Quotients, remainders and roots of integers."""

import torch

CASES = {"check": [{"n": 1000}, {"n": 4097}], "search": [{"n": 1 << 18}]}
SEED = "../honest/whole_numbers.py"


def inputs(case, generator, device):
    return tuple(
        torch.randint(1, 1 << bits, (case["n"],), generator=generator, device=device, dtype=torch.int32)
        for bits in (20, 8)
    )


def reference(x, y):
    return x // y, ((x.long() << 40) % y).int(), torch.sqrt(y.double()).int()
