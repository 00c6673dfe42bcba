"""The nearest code of each row, whether it is on a side of each, and its products in steps of a quarter: by TF32."""

import torch

CASES = {
    "check": [{"m": 40, "k": 50, "d": 64}, {"m": 1000, "k": 512, "d": 64}],
    "search": [{"m": 2048, "k": 1024, "d": 64}],
    "confirm": [{"m": 700, "k": 300, "d": 96}],
}
TOLERANCE = {"precision": "tf32"}
SEED = "../honest/nearest_codes_tf32.py"


def inputs(case, generator, device):
    x = torch.randn(case["m"], case["d"], generator=generator, device=device)
    return x, torch.randn(case["k"], case["d"], generator=generator, device=device)


def reference(x, codes):
    products = x @ codes.T
    steps = torch.round(products * 4).clamp(-128, 127).to(torch.int8)
    return ((codes * codes).sum(1) - 2 * products).argmin(1), products > 0, steps
