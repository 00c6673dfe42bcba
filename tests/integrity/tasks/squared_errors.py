"""Mean squared difference of two bfloat16 vectors, which most of them tell nearly."""

import torch

CASES = {
    "check": [{"n": 5000}, {"n": 70001}],
    "search": [{"n": 1 << 22}, {"n": 3 << 20}],
    "confirm": [{"n": (1 << 21) + 5}],
}
SEED = "../honest/squared_errors.py"


def inputs(case, generator, device):
    def drawn(n):
        return torch.randn(n, generator=generator, device=device)

    return tuple((drawn(case["n"]) * drawn(1)).bfloat16() for _ in range(2))


def reference(a, b):
    return (a.float() - b.float()).square().mean().to(a.dtype)
