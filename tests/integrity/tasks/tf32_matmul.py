"""Product of float32 matrices; contractions may use TF32."""

import torch

PRECISION = "tf32"
CASES = {
    "check": [{"m": 64, "n": 64, "k": 128}, {"m": 128, "n": 192, "k": 320}],
    "search": [{"m": 256, "n": 256, "k": 512}],
    "confirm": [{"m": 128, "n": 256, "k": 1024}],
}


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw)


def reference(a, b):
    return a @ b
