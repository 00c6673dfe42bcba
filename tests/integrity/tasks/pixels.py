"""Pixels in [0, 1) as bytes."""

import torch

CASES = {"check": [{"m": 5, "n": 127}, {"m": 16, "n": 512}], "search": [{"m": 256, "n": 1024}]}
SEED = "../honest/pixels.py"


def inputs(case, generator, device):
    return torch.rand(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return (x * 255).round().to(torch.uint8)
