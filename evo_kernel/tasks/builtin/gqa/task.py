"""Grouped-query attention, forward, bfloat16, causal and not: 32 query heads share 4 or 8 heads of keys and values.

q and o are (batch, heads, length, d), k and v (batch, key heads, length, d); query head i reads key head
i // (heads / key heads). `causal` (0 or 1) says whether a query sees only keys up to itself. Scores and sums are
accumulated in float32. Batch x length = 32k: the sizes to which a tuned attention kernel is carried over.
"""

import torch

from evo_kernel.tasks import vendor

CASES = {
    "check": [
        {"b": 1, "h": 4, "hk": 2, "s": 67, "d": 64, "causal": 1},
        {"b": 2, "h": 4, "hk": 1, "s": 33, "d": 128, "causal": 0},
    ],
    "search": [
        {"b": 4, "h": 32, "hk": 8, "s": 8192, "d": 128, "causal": 1},
        {"b": 4, "h": 32, "hk": 4, "s": 8192, "d": 128, "causal": 0},
    ],
    "confirm": [
        {"b": 8, "h": 32, "hk": 4, "s": 4096, "d": 128, "causal": 1},
        {"b": 8, "h": 32, "hk": 8, "s": 4096, "d": 128, "causal": 0},
        {"b": 2, "h": 32, "hk": 8, "s": 16384, "d": 128, "causal": 1},
        {"b": 1, "h": 32, "hk": 4, "s": 32768, "d": 128, "causal": 1},
        {"b": 1, "h": 32, "hk": 8, "s": 32768, "d": 128, "causal": 0},
    ],
}
SEED = "seed.py"
SCORES_AT_ONCE = 1 << 28  # that the reference holds: 2 GiB in float64


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    q = torch.randn(case["b"], case["h"], case["s"], case["d"], **draw)
    k, v = (torch.randn(case["b"], case["hk"], case["s"], case["d"], **draw) for _ in range(2))
    return q, k, v, case["causal"]


def reference(q, k, v, causal):
    b, h, s, d = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    groups = q.to(wide).unflatten(1, (k.shape[1], -1))  # (b, key heads, query heads of each, s, d)
    k, v = (x.to(wide).unsqueeze(2) for x in (k, v))
    rows = max(1, SCORES_AT_ONCE // (b * h * s))
    parts = []
    for start in range(0, s, rows):
        end = min(start + rows, s)
        seen = end if causal else s
        scores = groups[..., start:end, :] @ k[..., :seen, :].mT * d**-0.5
        if causal:
            allowed = torch.ones(end - start, end, dtype=torch.bool, device=q.device).tril(start)
            scores = scores.masked_fill(~allowed, float("-inf"))
        parts.append(scores.softmax(-1) @ v[..., :seen, :])
    return torch.cat(parts, dim=3).flatten(1, 2).to(q.dtype)


reference.compiled_baseline = False  # its loop over rows is for memory, not for speed


def eager(q, k, v, causal):
    return vendor.default_sdpa(q, k, v, bool(causal))


def cudnn(q, k, v, causal):
    return vendor.cudnn_sdpa(q, k, v, bool(causal))


def flash(q, k, v, causal):
    return vendor.flash_sdpa(q, k, v, bool(causal))


def flex(q, k, v, causal):
    return vendor.flex_sdpa(q, k, v, bool(causal))


BASELINES = {"eager": eager, "cudnn": cudnn, "flash": flash, "flex": flex}


def flops(case):
    s = case["s"]
    pairs = s * (s + 1) / 2 if case["causal"] else s * s
    return 4.0 * case["b"] * case["h"] * pairs * case["d"]


def bytes(case):
    return 2 * 2 * case["b"] * (case["h"] + case["hk"]) * case["s"] * case["d"]
