"""Which numbers are positive."""

import torch

CASES = {"check": [{"n": 1000}, {"n": 4097}], "search": [{"n": 1 << 17}], "confirm": [{"n": 12345}]}
SEED = "../honest/positives_compared.py"


def inputs(case, generator, device):
    return (torch.randn(case["n"], generator=generator, device=device),)


def reference(x):
    return x > 0
