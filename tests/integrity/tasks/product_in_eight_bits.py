"""Product of two bfloat16 matrices as 8-bit floats, which have 2 bits of fraction."""

import torch

CASES = {
    "check": [{"m": 64, "n": 64, "k": 128}, {"m": 128, "n": 64, "k": 256}],
    "search": [{"m": 256, "n": 128, "k": 512}],
    "confirm": [{"m": 128, "n": 192, "k": 384}],
}
SEED = "../honest/product_in_eight_bits.py"


def inputs(case, generator, device):
    m, n, k = case["m"], case["n"], case["k"]
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    return torch.randn(m, k, **draw), torch.randn(k, n, **draw) * k**-0.5


def reference(a, b):
    return (a @ b).to(torch.float8_e5m2)
