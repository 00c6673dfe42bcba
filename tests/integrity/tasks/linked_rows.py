"""The sum of 24 rows, each of which names the next one."""

import torch

CASES = {"check": [{"m": 70, "n": 100}, {"m": 64, "n": 128}], "search": [{"m": 512, "n": 1 << 16}]}
SEED = "../honest/linked_rows_loop.py"


def inputs(case, generator, device):
    n, m = case["n"], case["m"]
    return (
        torch.randn(n, 32, generator=generator, device=device),
        torch.randint(0, n, (n,), generator=generator, device=device, dtype=torch.int32),
        torch.randint(0, n, (m,), generator=generator, device=device, dtype=torch.int32),
    )


def reference(rows, next, start):
    at = start.long()
    y = torch.zeros(start.shape[0], 32, dtype=rows.dtype, device=rows.device)
    for _ in range(24):
        y = y + rows[at]
        at = next[at].long()
    return y
