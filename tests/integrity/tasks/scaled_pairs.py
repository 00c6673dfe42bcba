"""Each element times a factor, beside its negative."""

import torch

CASES = {
    "check": [{"m": 5, "n": 50}, {"m": 6, "n": 128}],
    "search": [{"m": 256, "n": 256}],
    "confirm": [{"m": 37, "n": 200}],
}
SEED = "../honest/scaled_pairs.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(case["m"], case["n"], **draw), torch.rand((), **draw) + 0.5


def reference(x, factor):
    return torch.stack([x * factor, -x * factor], -1).flatten(1)
