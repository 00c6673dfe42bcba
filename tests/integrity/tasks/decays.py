"""A recurrence of many channels, each with a rate below zero at which its state decays."""

import torch

CASES = {
    "check": [{"t": 24, "d": 32}, {"t": 64, "d": 50}],
    "search": [{"t": 64, "d": 64}],
    "confirm": [{"t": 77, "d": 24}],
}
SEED = "../honest/decays_loop.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    rates = -0.1 - torch.rand(case["d"], **draw)
    return torch.randn(case["t"], case["d"], **draw), torch.rand(case["t"], case["d"], **draw) / 2, rates


def reference(x, steps, rates):
    state, states = torch.zeros_like(rates), []
    for row, step in zip(x, steps, strict=True):
        state = torch.exp(step * rates) * state + step * row
        states.append(state)
    return torch.stack(states)
