"""Causal attention, forward, bfloat16: o = softmax(q @ k.T / sqrt(d), over keys up to the query) @ v, a head at a time.

q, k, v and o are (batch, heads, length, d); scores and sums are accumulated in float32.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = {
    "check": [
        {"b": 1, "h": 1, "s": 1, "d": 64},
        {"b": 1, "h": 2, "s": 67, "d": 64},
        {"b": 2, "h": 1, "s": 33, "d": 128},
    ],
    "search": [{"b": 4, "h": 16, "s": 2048, "d": 64}, {"b": 1, "h": 32, "s": 4096, "d": 128}],
    "confirm": [
        {"b": 2, "h": 16, "s": 4096, "d": 64},
        {"b": 8, "h": 8, "s": 1023, "d": 128},
        {"b": 1, "h": 16, "s": 8192, "d": 128},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    shape = (case["b"], case["h"], case["s"], case["d"])
    return tuple(torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(3))


def reference(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cudnn(q, k, v):
    """The same by cuDNN's kernels where this GPU and build have them, by the next best where not."""
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


BASELINES = {"eager": reference, "cudnn": cudnn}


def flops(case):
    pairs = case["s"] * (case["s"] + 1) / 2  # a query sees the keys up to itself
    return 4.0 * case["b"] * case["h"] * pairs * case["d"]


def bytes(case):
    return 2 * 4 * case["b"] * case["h"] * case["s"] * case["d"]
