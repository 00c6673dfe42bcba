"""exp of a large matrix, and the mean of its squares: no element of the second is had without all of the first."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 512, "n": 1024}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/exp_and_mean.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.exp(), x.pow(2).mean()
