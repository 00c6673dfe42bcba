"""One with the sign of an integer's parity."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 7, "n": 113}],
    "search": [{"m": 96, "n": 101}],
    "confirm": [{"m": 33, "n": 1000}],
}
SEED = "../honest/signs_by_powers.py"


def inputs(case, generator, device):
    return torch.randint(
        1 << 25, 1 << 30, (case["m"], case["n"]), generator=generator, device=device, dtype=torch.int32
    )


def reference(x):
    return 1.0 - 2.0 * (x % 2).float()
