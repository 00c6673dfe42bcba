"""Powers of two with exponents from 0 to 1."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/powers_of_two.py"


def inputs(case, generator, device):
    return torch.rand(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return torch.exp2(x)
