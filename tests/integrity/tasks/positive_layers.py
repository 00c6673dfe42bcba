"""Two layers of numbers above zero; contractions may use TF32."""

import torch

PRECISION = "tf32"
CASES = {"check": [{"m": 64, "n": 64}], "search": [{"m": 256, "n": 128}], "confirm": [{"m": 128, "n": 64}]}
SEED = "../honest/two_layers_tf32.py"


def inputs(case, generator, device):
    m, n = case["m"], case["n"]
    draw = {"generator": generator, "device": device}
    return torch.rand(m, 64, **draw), torch.rand(64, n, **draw), torch.rand(n, 64, **draw)


def reference(x, v, w):
    return torch.relu(x @ v - 16) @ w
