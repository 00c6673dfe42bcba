"""Remainders of x * 2^900, by torch too."""

import torch

CASES = {"check": [{"n": 1000}, {"n": 4097}], "search": [{"n": 1 << 18}]}
ALLOW = "mixed"
SEED = "../honest/remainders_by_the_library.py"


def inputs(case, generator, device):
    shape, draw = (case["n"],), {"generator": generator, "device": device, "dtype": torch.int32}
    return torch.randint(2, 1 << 20, shape, **draw), torch.randint(2, 1 << 20, shape, **draw)


def reference(x, m):
    return torch.fmod(x.double() * 2.0**900, m.double()).int()
