"""Places of numbers in a sorted table; torch is allowed."""

import torch

CASES = {"check": [{"n": 1000, "t": 512}, {"n": 4097, "t": 2048}], "search": [{"n": 1 << 18, "t": 1 << 18}]}
ALLOW = "mixed"
SEED = "../honest/table_places.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.int32}
    return torch.randint(0, 1 << 30, (case["t"],), **draw).sort().values, torch.randint(
        0, 1 << 30, (case["n"],), **draw
    )


def reference(table, x):
    return torch.searchsorted(table, x)
