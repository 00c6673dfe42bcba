"""Rotary embedding of queries and keys, bfloat16, halves rotated: pairs are (x[j], x[j + d / 2]).

q is (batch, length, heads, d), k (batch, length, key heads, d), cos and sin float32 (length, d / 2). With a = x[..., :
d / 2] and b = x[..., d / 2 :], an output is [a * cos - b * sin, b * cos + a * sin], the same for all heads. Returned
are the rotated q and the rotated k. Products and sums are float32.
"""

import torch

BASE = 500000.0  # of the wavelengths
CASES = {
    "check": [
        {"b": 2, "s": 7, "h": 3, "hk": 1, "d": 64},
        {"b": 1, "s": 5, "h": 4, "hk": 2, "d": 32},
        {"b": 3, "s": 1, "h": 2, "hk": 2, "d": 128},
    ],
    "search": [{"b": 4, "s": 4096, "h": 32, "hk": 8, "d": 128}, {"b": 1, "s": 32768, "h": 16, "hk": 16, "d": 64}],
    "confirm": [
        {"b": 1, "s": 8192, "h": 64, "hk": 8, "d": 128},
        {"b": 8, "s": 2047, "h": 32, "hk": 32, "d": 128},
        {"b": 2, "s": 16384, "h": 28, "hk": 4, "d": 128},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    q = torch.randn(case["b"], case["s"], case["h"], case["d"], **draw)
    k = torch.randn(case["b"], case["s"], case["hk"], case["d"], **draw)
    half = case["d"] // 2
    first = torch.randint(1, 4096, (1,), generator=generator, device=device)  # a cache's position: any
    speeds = BASE ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    angles = (first + torch.arange(case["s"], device=device))[:, None] * speeds
    return q, k, angles.cos().float(), angles.sin().float()


def rotated(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def reference(q, k, cos, sin):
    return rotated(q, cos, sin), rotated(k, cos, sin)


def rounded(q, k, cos, sin):
    """As models write it, in the dtype of q: cos and sin are rounded to it."""
    cos, sin = (torch.cat([x, x], dim=-1)[:, None].to(q.dtype) for x in (cos, sin))
    halves = (x.roll(x.shape[-1] // 2, -1) for x in (q, k))
    sign = torch.ones_like(sin)
    sign[..., : sin.shape[-1] // 2] = -1
    return tuple(x * cos + half * (sign * sin) for x, half in zip((q, k), halves, strict=True))


BASELINES = {"eager": reference, "rounded": rounded}


def elements_of(case):
    return case["b"] * case["s"] * (case["h"] + case["hk"]) * case["d"]


def flops(case):
    return 3.0 * elements_of(case)  # two products and a sum


def bytes(case):
    return 2 * 2 * elements_of(case) + 4 * case["s"] * case["d"]
