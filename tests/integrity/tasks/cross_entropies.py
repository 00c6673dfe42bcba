"""Binary cross-entropies of probabilities, whose logarithms are -100 at least."""

import torch

CASES = {"check": [{"m": 5, "n": 127}, {"m": 16, "n": 512}], "search": [{"m": 256, "n": 1024}]}
SEED = "../honest/cross_entropies.py"


def inputs(case, generator, device):
    draw, shape = {"generator": generator, "device": device}, (case["m"], case["n"])
    return torch.rand(shape, **draw), torch.rand(shape, **draw)


def reference(p, y):
    yes, no = p.log().clamp(min=-100), (1 - p).log().clamp(min=-100)
    return -(y * yes + (1 - y) * no)
