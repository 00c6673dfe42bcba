"""Where a chain of 24 links leads from each of many starts."""

import torch

CASES = {"check": [{"m": 70, "n": 100}, {"m": 64, "n": 128}], "search": [{"m": 512, "n": 1 << 16}]}
SEED = "../honest/chain_loop.py"


def inputs(case, generator, device):
    n, m = case["n"], case["m"]
    return (
        torch.randint(0, n, (n,), generator=generator, device=device, dtype=torch.int32),
        torch.randint(0, n, (m,), generator=generator, device=device, dtype=torch.int32),
    )


def reference(next, start):
    at = start.long()
    for _ in range(24):
        at = next[at].long()
    return at.int()
