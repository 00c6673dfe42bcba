"""Inclusive sums of long rows."""

import torch

CASES = {
    "check": [{"m": 2, "n": 4099}, {"m": 3, "n": 2048}],
    "search": [{"m": 3, "n": 4096}],
    "confirm": [{"m": 5, "n": 5000}],
}
TOLERANCE = "atomics"  # which block finds which prefix depends on time
SEED = "../honest/running_sums_look_back.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return x.cumsum(1)
