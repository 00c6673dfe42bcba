"""Six layers of a network in float32, every multiplication at full precision."""

import torch

CASES = {
    "check": [{"m": 33, "k": 65}, {"m": 40, "k": 96}],
    "search": [{"m": 64, "k": 192}],
    "confirm": [{"m": 61, "k": 200}],
}
LAYERS = 6
SEED = "../honest/six_layers.py"


def inputs(case, generator, device):
    m, k = case["m"], case["k"]
    draw = {"generator": generator, "device": device}
    return torch.randn(m, k, **draw), torch.randn(LAYERS, k, k, **draw) * (2 / k) ** 0.5


def reference(x, weights):
    for weight in weights:
        x = torch.relu(x @ weight)
    return x
