"""Functions of torch that are respelled while a reference is traced, because PyTorch's own expansion is clumsy.

`scaled_dot_product_attention` expands into some twenty operations that guard against rows without any key; spelled
plainly it is two products, a mask and a softmax. Recurrent networks are spelled by the layer (networks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from evo_kernel.tasks.lowering.networks import Recurrent


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale q kᵀ + mask) v, in float32 for half types. Shapes [..., t, d], [..., s, d], [..., s, e]."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale  # not math.sqrt, which would fix the size
    q, k, v = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (query, key, value))
    scores = (q @ k.transpose(-2, -1)) * factor
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        allowed = torch.arange(key.shape[-2], device=query.device) <= rows
        scores = scores.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None:
        keep = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if keep else scores + attn_mask
    return (torch.softmax(scores, dim=-1) @ v).to(query.dtype)


class Respelled(Recurrent):
    """While it is active, respelled functions run instead of PyTorch's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention and (kwargs or {}).get("dropout_p", 0.0) == 0.0:
            return attention(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)
