"""GELU by the error function, elementwise on a float32 vector."""

import torch

CASES = {"check": [{"n": 1031}, {"n": 2049}], "search": [{"n": 8195}], "confirm": [{"n": 10007}]}
SEED = "../honest/gelu_erf.py"


def inputs(case, generator, device):
    return torch.randn(case["n"], generator=generator, device=device)


def reference(x):
    return torch.nn.functional.gelu(x)
