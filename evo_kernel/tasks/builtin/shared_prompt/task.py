"""Attention of N responses that share one prompt, forward, bfloat16, with log-sum-exp: the prompt is read once.

q and out are (p + sum of r_i, heads, d): first the prompt's rows, then those of each response. k_ctx and v_ctx are
(p, key heads, d), k_dec and v_dec (sum of r_i, key heads, d): keys and values of the prompt and of all responses. cu
(N + 1, int32) holds where each response begins among the rows of all responses, and is known to the host. A row of
the prompt sees the prompt up to itself; a row of a response sees the whole prompt, and its own response up to itself.
Query head j reads key head j // (heads / key heads). lse is float32 (heads, p + sum of r_i): the logarithm of the sum
of exp(scores), where scores are q @ k.T / sqrt(d).
"""

import torch

from evo_kernel.tasks import shared_prompts

CASES = {
    "check": [
        {"n": 3, "p": 37, "r": 18, "ragged": 1, "h": 4, "hk": 2, "d": 64},
        {"n": 2, "p": 32, "r": 16, "ragged": 0, "h": 2, "hk": 1, "d": 128},
    ],
    "search": [
        {"n": 16, "p": 8192, "r": 1024, "ragged": 0, "h": 32, "hk": 8, "d": 128},
        {"n": 32, "p": 8192, "r": 512, "ragged": 1, "h": 32, "hk": 8, "d": 128},
    ],
    "confirm": [
        {"n": 16, "p": 2048, "r": 1024, "ragged": 0, "h": 32, "hk": 8, "d": 128},
        {"n": 32, "p": 8191, "r": 1024, "ragged": 1, "h": 32, "hk": 8, "d": 128},
        {"n": 8, "p": 32768, "r": 1024, "ragged": 1, "h": 32, "hk": 8, "d": 128},
        {"n": 7, "p": 4097, "r": 2048, "ragged": 1, "h": 16, "hk": 4, "d": 64},
    ],
}
SEED = "seed.py"
HOST_KNOWN = {5}
SCORES_AT_ONCE = 1 << 28  # that the reference holds: 2 GiB in float64


def lengths_of(case):
    """Rows of each response: r, or irregular between r / 2 and 3 r / 2."""
    r = case["r"]
    return [r // 2 + i * 7919 % (r + 1) if case["ragged"] else r for i in range(case["n"])]


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    lengths = lengths_of(case)
    rows = (case["p"], case["p"], sum(lengths), sum(lengths))
    q = torch.randn(case["p"] + sum(lengths), case["h"], case["d"], **draw)
    keys = (torch.randn(n, case["hk"], case["d"], **draw) for n in rows)
    starts = [sum(lengths[:i]) for i in range(case["n"] + 1)]
    return q, *keys, torch.tensor(starts, dtype=torch.int32, device=device)


def reference(q, k_ctx, v_ctx, k_dec, v_dec, cu):
    wide = torch.promote_types(q.dtype, torch.float32)
    (total, h, d), p = q.shape, len(k_ctx)
    k, v = (torch.cat(pair).to(wide).transpose(0, 1).unsqueeze(1) for pair in ((k_ctx, k_dec), (v_ctx, v_dec)))
    groups = q.to(wide).transpose(0, 1).unflatten(0, (k.shape[0], -1))  # (key heads, query heads of each, rows, d)
    place = torch.arange(total, device=q.device)
    owner = torch.bucketize(place - p, cu.long(), right=True)  # 0: the prompt; else the number of the response
    step = max(1, SCORES_AT_ONCE // (h * total))
    out, lse = [], []
    for start in range(0, total, step):
        rows = slice(start, start + step)
        own = (owner == owner[rows, None]) & (place <= place[rows, None])
        scores = groups[..., rows, :] @ k.mT * d**-0.5
        scores = scores.masked_fill(~(own | ((owner == 0) & (owner[rows, None] > 0))), float("-inf"))
        lse.append(scores.logsumexp(-1))
        out.append(scores.softmax(-1) @ v)
    joined = torch.cat(out, dim=2).flatten(0, 1).transpose(0, 1)
    return joined.to(q.dtype).contiguous(), torch.cat(lse, dim=2).flatten(0, 1)


reference.compiled_baseline = False  # its loop over rows is for memory, not for speed

BASELINES = {
    "eager": shared_prompts.replicated,
    "three parts": shared_prompts.three_parts,
    "flex": shared_prompts.flex,
}


def flops(case):
    p = case["p"]
    pairs = p * (p + 1) / 2 + sum(r * p + r * (r + 1) / 2 for r in lengths_of(case))
    return 4.0 * case["h"] * case["d"] * pairs


def bytes(case):
    rows = case["p"] + sum(lengths_of(case))
    return rows * (2 * 2 * case["d"] * (case["h"] + case["hk"]) + 4 * case["h"]) + 4 * (case["n"] + 1)
