"""One step of stochastic gradient descent with momentum on flat parameters: a small change of large numbers."""

import torch

CASES = {"check": [{"n": 4099}, {"n": 8192}], "search": [{"n": 1 << 22}], "confirm": [{"n": 10007}]}
SEED = "../honest/flat_step.py"


def inputs(case, generator, device):
    return tuple(torch.randn(case["n"], generator=generator, device=device) for _ in range(3))


def reference(weight, momentum, gradient):
    return weight - 1e-4 * (0.9 * momentum + 0.1 * gradient)
