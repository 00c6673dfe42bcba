"""Which numbers are in a set; torch is allowed."""

import torch

CASES = {"check": [{"n": 1000, "t": 5}, {"n": 4097, "t": 20}], "search": [{"n": 1 << 20, "t": 1 << 10}]}
ALLOW = "mixed"
SEED = "../honest/memberships.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.int32}
    return torch.randint(0, 1 << 12, (case["t"],), **draw), torch.randint(0, 1 << 12, (case["n"],), **draw)


def reference(members, x):
    return torch.isin(x, members)
