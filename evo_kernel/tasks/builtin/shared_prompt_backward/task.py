"""Attention of N responses that share one prompt, backward, bfloat16: all gradients, the shared prompt's too.

Shapes, masks and offsets are those of the task shared_prompt; do is the gradient of its output. Returned are the
gradients of q, k_ctx, v_ctx, k_dec and v_dec; those of the prompt's keys and values are sums over the prompt and all
responses. With p = softmax(scores) and dp = do @ v.T, they are dv = p.T @ do, dq = ds @ k / sqrt(d) and dk = ds.T @ q
/ sqrt(d), where ds = p * (dp - sum over keys of p * dp). Nothing of a forward pass is handed over: what a kernel
needs of it, it computes within its time. Products and sums are accumulated in float32. The reference takes the way of
FlashAttention, for the reason that the task attention_backward gives.
"""

import torch

from evo_kernel.tasks import shared_prompts

CASES = {
    "check": [
        {"n": 2, "p": 33, "r": 18, "ragged": 1, "h": 4, "hk": 2, "d": 64},
        {"n": 1, "p": 16, "r": 8, "ragged": 0, "h": 2, "hk": 1, "d": 128},
    ],
    "search": [
        {"n": 16, "p": 8192, "r": 1024, "ragged": 0, "h": 32, "hk": 8, "d": 128},
        {"n": 32, "p": 8192, "r": 512, "ragged": 1, "h": 32, "hk": 8, "d": 128},
    ],
    "confirm": [
        {"n": 16, "p": 2048, "r": 1024, "ragged": 0, "h": 32, "hk": 8, "d": 128},
        {"n": 8, "p": 16384, "r": 1024, "ragged": 1, "h": 32, "hk": 8, "d": 128},
        {"n": 7, "p": 4097, "r": 2048, "ragged": 1, "h": 16, "hk": 4, "d": 64},
    ],
}
SEED = "seed.py"
HOST_KNOWN = {6}
SCORES_AT_ONCE = 1 << 27  # that the reference holds: 1 GiB in float64


def lengths_of(case):
    """Rows of each response: r, or irregular between r / 2 and 3 r / 2."""
    r = case["r"]
    return [r // 2 + i * 7919 % (r + 1) if case["ragged"] else r for i in range(case["n"])]


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    lengths = lengths_of(case)
    rows = (case["p"], case["p"], sum(lengths), sum(lengths))
    q, do = (torch.randn(case["p"] + sum(lengths), case["h"], case["d"], **draw) for _ in range(2))
    keys = (torch.randn(n, case["hk"], case["d"], **draw) for n in rows)
    starts = [sum(lengths[:i]) for i in range(case["n"] + 1)]
    return q, *keys, do, torch.tensor(starts, dtype=torch.int32, device=device)


def reference(q, k_ctx, v_ctx, k_dec, v_dec, do, cu):
    kind = q.dtype
    wide = torch.promote_types(kind, torch.float32)
    (total, h, d), p = q.shape, len(k_ctx)
    k, v = (torch.cat(pair).to(wide).transpose(0, 1).unsqueeze(1) for pair in ((k_ctx, k_dec), (v_ctx, v_dec)))
    # (key heads, query heads of each, rows, d)
    q, do = (x.to(wide).transpose(0, 1).unflatten(0, (k.shape[0], -1)) for x in (q, do))
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    place = torch.arange(total, device=q.device)
    owner = torch.bucketize(place - p, cu.long(), right=True)  # 0: the prompt; else the number of the response
    step = max(1, SCORES_AT_ONCE // (h * total))
    for start in range(0, total, step):
        rows = slice(start, start + step)
        own = (owner == owner[rows, None]) & (place <= place[rows, None])
        scores = q[:, :, rows] @ k.mT * d**-0.5
        scores = scores.masked_fill(~(own | ((owner == 0) & (owner[rows, None] > 0))), float("-inf"))
        shares = (scores - scores.logsumexp(-1, keepdim=True)).exp()
        weights = shares.to(kind).to(wide)
        o = (weights @ v).to(kind).to(wide)
        ds = shares * (do[:, :, rows] @ v.mT - (do[:, :, rows] * o).sum(-1, keepdim=True)) * d**-0.5
        ds = ds.to(kind).to(wide)
        dq[:, :, rows] = ds @ k
        dk += (ds.mT @ q[:, :, rows]).sum(1, keepdim=True)
        dv += (weights.mT @ do[:, :, rows]).sum(1, keepdim=True)
    dq, dk, dv = (x.flatten(0, 1).transpose(0, 1).to(kind) for x in (dq, dk, dv))
    return tuple(x.contiguous() for x in (dq, dk[:p], dv[:p], dk[p:], dv[p:]))


reference.compiled_baseline = False  # its loop over rows is for memory, not for speed

BASELINES = {
    "eager": shared_prompts.replicated_gradients,
    "three parts": shared_prompts.three_parts_gradients,
    "flex": shared_prompts.flex_gradients,
}


def flops(case):
    """Of five products: scores, dp, dq, dk, dv. Two more where a kernel first runs the forward pass."""
    p = case["p"]
    pairs = p * (p + 1) / 2 + sum(r * p + r * (r + 1) / 2 for r in lengths_of(case))
    return 10.0 * case["h"] * case["d"] * pairs


def bytes(case):
    rows = case["p"] + sum(lengths_of(case))
    return rows * 2 * case["d"] * (3 * case["h"] + 4 * case["hk"]) + 4 * (case["n"] + 1)
