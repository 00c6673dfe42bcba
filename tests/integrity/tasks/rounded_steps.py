"""Numbers that are rounded again and again, all of them exact."""

import torch

CASES = {"check": [{"n": 1000, "steps": 5}, {"n": 1024, "steps": 9}], "search": [{"n": 1 << 18, "steps": 64}]}
SEED = "../honest/rounded_steps_by_sums.py"


def inputs(case, generator, device):
    return torch.randint(-999, 1000, (case["n"],), generator=generator, device=device).float(), case["steps"]


def reference(x, steps):
    for _ in range(steps):
        x = torch.round(x * -0.75 + 11.0)
    return x
