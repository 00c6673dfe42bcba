"""Rotary embedding of queries in place: the kernel changes its first input and returns nothing."""

import torch

CASES = {
    "check": [{"rows": 7, "d": 32}, {"rows": 130, "d": 64}],
    "search": [{"rows": 16384, "d": 128}],
    "confirm": [{"rows": 4099, "d": 96}],
}
MUTATES = ("q",)
SEED = "../honest/rotary_in_place.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    angles = 6 * torch.rand(case["rows"], case["d"] // 2, **draw)
    return torch.randn(case["rows"], case["d"], **draw), angles.cos(), angles.sin()


def reference(q, cos, sin):
    x, y = q.chunk(2, -1)
    left, right = x * cos - y * sin, y * cos + x * sin
    x.copy_(left)
    y.copy_(right)
