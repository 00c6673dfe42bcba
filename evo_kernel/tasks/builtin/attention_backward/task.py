"""Causal attention, backward, bfloat16: gradients of q, k and v from q, k, v and the gradient of the output alone.

All are (batch, heads, length, d). With p = softmax(q @ k.T / sqrt(d), over keys up to the query) and dp = do @ v.T,
the gradients are dv = p.T @ do, dq = ds @ k / sqrt(d) and dk = ds.T @ q / sqrt(d), where ds = p * (dp - sum over keys
of p * dp). Nothing of a forward pass is handed over: what a kernel needs of it, it computes within its time. Products
and sums are accumulated in float32.

The reference takes the way of FlashAttention (Dao et al. 2022, appendix B.4: p from the log-sum-exp, the sum from the
rounded output, operands of products in bfloat16), so that in the task's own dtypes it loses the digits that this way
loses, where much cancels: a kernel that takes it is honest.
"""

import torch

from evo_kernel.tasks import vendor

CASES = {
    "check": [
        {"b": 1, "h": 2, "s": 67, "d": 64},
        {"b": 2, "h": 1, "s": 33, "d": 128},
    ],
    "search": [{"b": 4, "h": 16, "s": 8192, "d": 128}, {"b": 8, "h": 32, "s": 4096, "d": 64}],
    "confirm": [
        {"b": 8, "h": 16, "s": 4096, "d": 128},
        {"b": 1, "h": 16, "s": 32768, "d": 128},
        {"b": 3, "h": 16, "s": 8191, "d": 64},
    ],
}
SEED = "seed.py"
SCORES_AT_ONCE = 1 << 27  # that the reference holds: 1 GiB in float64


def inputs(case, generator, device):
    shape = (case["b"], case["h"], case["s"], case["d"])
    return tuple(torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(4))


def reference(q, k, v, do):
    b, h, s, d = q.shape
    scale = d**-0.5
    kind = q.dtype
    q, k, v, do = (x.to(torch.promote_types(kind, torch.float32)) for x in (q, k, v, do))
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    step = max(1, SCORES_AT_ONCE // (b * h * s))
    for start in range(0, s, step):
        end = min(start + step, s)
        rows, seen = (slice(None), slice(None), slice(start, end)), (slice(None), slice(None), slice(0, end))
        allowed = torch.ones(end - start, end, dtype=torch.bool, device=q.device).tril(start)
        scores = (q[rows] @ k[seen].mT * scale).masked_fill(~allowed, float("-inf"))
        p = (scores - scores.logsumexp(-1, keepdim=True)).exp()
        weights = p.to(kind).to(p.dtype)  # operands of products are the task's: bfloat16, or float64 for the truth
        o = (weights @ v[seen]).to(kind).to(p.dtype)
        ds = p * (do[rows] @ v[seen].mT - (do[rows] * o).sum(-1, keepdim=True)) * scale
        ds = ds.to(kind).to(p.dtype)
        dq[rows] = ds @ k[seen]
        dk[seen] += ds.mT @ q[rows]
        dv[seen] += weights.mT @ do[rows]
    return dq.to(kind), dk.to(kind), dv.to(kind)


reference.compiled_baseline = False  # its loop over rows is for memory, not for speed


def eager(q, k, v, do):
    return vendor.causal_gradients(vendor.default_sdpa, q, k, v, do)


def cudnn(q, k, v, do):
    return vendor.causal_gradients(vendor.cudnn_sdpa, q, k, v, do)


def flash(q, k, v, do):
    return vendor.causal_gradients(vendor.flash_sdpa, q, k, v, do)


def flex(q, k, v, do):
    return vendor.causal_gradients(vendor.flex_sdpa, q, k, v, do)


BASELINES = {"eager": eager, "cudnn": cudnn, "flash": flash, "flex": flex}


def flops(case):
    """Of five products: scores, dp, dq, dk, dv. Two more where a kernel first runs the forward pass."""
    pairs = case["s"] * (case["s"] + 1) / 2  # a query sees the keys up to itself
    return 10.0 * case["b"] * case["h"] * pairs * case["d"]


def bytes(case):
    return 2 * 7 * case["b"] * case["h"] * case["s"] * case["d"]
