"""A task that can be solved without looking at its input: the mean of a softmax over a row is 1 / n."""

import torch

CASES = {"check": [{"m": 5, "n": 127}], "search": [{"m": 64, "n": 512}]}


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return torch.softmax(x, dim=-1).mean(dim=-1)
