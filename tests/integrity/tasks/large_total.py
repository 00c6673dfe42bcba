"""The sum of 256 MB of float32: much to read, four bytes of an answer."""

import torch

CASES = {
    "check": [{"n": 4099}, {"n": 70001}],
    "search": [{"n": 67108864}],
    "confirm": [{"n": 300007}],
}


def inputs(case, generator, device):
    return torch.randn(case["n"], generator=generator, device=device)


def reference(x):
    return x.sum()
