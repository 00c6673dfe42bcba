"""Families of the built-in tasks, and which of them are held out.

A tree is split by whole families: kernels of one family are so alike (layernorm and rmsnorm, attention and its causal
form) that a policy which saw one has all but seen the other. Held out are the losses and the elementwise tasks. What
the rewriter offers on them also occurs in training, so that a policy *can* know it, on kernels that are not like them;
their kernels compile fast, so that live comparisons are cheap; and what pays differs (rows of 128,256 logits that no
register file holds, tasks that are bound by memory alone), so that always doing the same does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from operators.learning.tree import Split

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "row": (
        "softmax", "layernorm", "rmsnorm", "add_rmsnorm", "layernorm_backward", "rmsnorm_backward", "qk_norm",
        "router_softmax",
    ),
    "loss": ("cross_entropy", "cross_entropy_backward"),
    "elementwise": ("swiglu", "rotary"),
    "contraction": ("matmul", "linear_gelu", "fp8_matmul", "int4_matmul", "grouped_matmul"),
    "attention": (
        "attention", "attention_causal", "attention_full", "attention_backward", "gqa", "decode_attention",
        "shared_prompt", "shared_prompt_backward",
    ),
    "convolution": ("conv2d", "conv2d_bf16", "conv2d_channels_last", "conv2d_tf32"),
}  # fmt: skip
HELD_OUT = ("loss", "elementwise")
INVENTED = "invented"  # tasks of no use but as lessons (learning/coder/invented.py); nobody can load them again


def family_of(task: str) -> str:
    """The family of a built-in task; a task of one's own is a family by itself."""
    if task.startswith(f"{INVENTED}_"):
        return INVENTED
    return next((family for family, tasks in FAMILIES.items() if task in tasks), task)


def split_of(family: str, held_out: tuple[str, ...] = HELD_OUT) -> Split:
    return "held-out" if family in held_out else "train"
