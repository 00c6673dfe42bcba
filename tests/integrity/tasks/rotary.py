"""Rotates pairs of columns by the row's angle: y = (a cos t - b sin t, a sin t + b cos t)."""

import torch

CASES = {
    "check": [{"m": 5, "n": 128}, {"m": 7, "n": 256}],
    "search": [{"m": 4096, "n": 2048}],
    "confirm": [{"m": 33, "n": 512}],
}


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(case["m"], case["n"], **draw), torch.rand(case["m"], case["n"] // 2, **draw) * 3.0


def reference(x, t):
    a, b = x.chunk(2, dim=1)
    return torch.cat([a * t.cos() - b * t.sin(), a * t.sin() + b * t.cos()], dim=1)
