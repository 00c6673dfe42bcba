"""Margins between the labels of a row and all its other elements, where torch operations are allowed beside kernels."""

import torch

CASES = {"check": [{"m": 3, "n": 64}, {"m": 5, "n": 100}], "search": [{"m": 64, "n": 2048}]}
ALLOW = "mixed"
SEED = "../honest/margins_by_torch.py"


def inputs(case, generator, device):
    m, n = case["m"], case["n"]
    labels = torch.argsort(torch.rand(m, n, generator=generator, device=device), dim=1)
    labels[:, n // 2] = -1
    return torch.randn(m, n, generator=generator, device=device), labels


def reference(x, labels):
    return torch.nn.functional.multilabel_margin_loss(x, labels, reduction="none") * 2
