"""Causal attention, forward, bfloat16, on 32k tokens: o = softmax(q @ k.T / sqrt(d), keys up to the query) @ v.

q, k, v and o are (batch, heads, length, d); scores and sums are accumulated in float32. The sizes are the grid by
which attention kernels are compared: batch x length = 32k with lengths of 4k to 32k, 16 heads of 128 or 32 heads of
64.
"""

import torch

from evo_kernel.tasks import vendor

CASES = {
    "check": [
        {"b": 1, "h": 2, "s": 67, "d": 64},
        {"b": 2, "h": 1, "s": 33, "d": 128},
    ],
    "search": [
        {"b": 8, "h": 16, "s": 4096, "d": 128},
        {"b": 1, "h": 16, "s": 32768, "d": 128},
        {"b": 4, "h": 32, "s": 8192, "d": 64},
    ],
    "confirm": [
        {"b": 4, "h": 16, "s": 8192, "d": 128},
        {"b": 2, "h": 16, "s": 16384, "d": 128},
        {"b": 8, "h": 32, "s": 4096, "d": 64},
        {"b": 2, "h": 32, "s": 16384, "d": 64},
        {"b": 1, "h": 32, "s": 32768, "d": 64},
    ],
}
SEED = "seed.py"
SCORES_AT_ONCE = 1 << 28  # that the reference holds: 2 GiB in float64


def inputs(case, generator, device):
    shape = (case["b"], case["h"], case["s"], case["d"])
    return tuple(torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(3))


def reference(q, k, v):
    b, h, s, d = q.shape
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v)]
    rows = max(1, SCORES_AT_ONCE // (b * h * s))
    parts = []
    for start in range(0, s, rows):
        end = min(start + rows, s)
        scores = wide[0][:, :, start:end] @ wide[1][:, :, :end].mT * d**-0.5
        allowed = torch.ones(end - start, end, dtype=torch.bool, device=q.device).tril(start)
        parts.append(scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ wide[2][:, :, :end])
    return torch.cat(parts, dim=2).to(q.dtype)


reference.compiled_baseline = False  # its loop over rows is for memory, not for speed


def eager(q, k, v):
    return vendor.default_sdpa(q, k, v, True)


def cudnn(q, k, v):
    return vendor.cudnn_sdpa(q, k, v, True)


def flash(q, k, v):
    return vendor.flash_sdpa(q, k, v, True)


def flex(q, k, v):
    return vendor.flex_sdpa(q, k, v, True)


BASELINES = {"eager": eager, "cudnn": cudnn, "flash": flash, "flex": flex}


def flops(case):
    pairs = case["s"] * (case["s"] + 1) / 2  # a query sees the keys up to itself
    return 4.0 * case["b"] * case["h"] * pairs * case["d"]


def bytes(case):
    return 2 * 4 * case["b"] * case["h"] * case["s"] * case["d"]
