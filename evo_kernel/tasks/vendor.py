"""Vendor kernels that built-in tasks are timed against: attention by cuDNN, by FlashAttention and by FlexAttention.

What a task computes stands in its own file; here is only what it is held against. Every function also runs without a
GPU (by PyTorch's CPU kernels), so that tests can compare it with the reference. Shapes are (batch, heads, rows, d);
keys and values may have fewer heads than queries, each shared by as many consecutive query heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def _scaled_dot_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def _forced(backend: SDPBackend) -> Attention:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        if not q.is_cuda:
            return _scaled_dot_product(q, k, v, causal)
        with sdpa_kernel(backend):  # alone: a baseline that fell back to another would carry a false name
            return _scaled_dot_product(q, k, v, causal)

    return attend


default_sdpa: Attention = _scaled_dot_product
cudnn_sdpa: Attention = _forced(SDPBackend.CUDNN_ATTENTION)
flash_sdpa: Attention = _forced(SDPBackend.FLASH_ATTENTION)


def attention_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """cuDNN's attention with the log-sum-exp of each row of scores, float32 (batch, heads, rows)."""
    if q.is_cuda:
        out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)[:2]
    else:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse.reshape(q.shape[:-1])


def merge_lse(
    one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two disjoint sets of keys, from (output, log-sum-exp) over each."""
    lse = torch.logaddexp(one[1], other[1])
    parts = (out.float() * (part - lse).exp().unsqueeze(-1) for out, part in (one, other))
    return sum(parts, torch.zeros((), device=lse.device)).to(one[0].dtype), lse


@functools.lru_cache(maxsize=4)
def causal_mask(rows: int, device: str) -> Any:
    """The block mask of causal attention: made once, as a model would."""
    return create_block_mask(lambda b, h, q, kv: q >= kv, None, None, rows, rows, device=device)


@functools.lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def flex_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """FlexAttention, compiled where there is a GPU."""
    mask = causal_mask(q.shape[2], str(q.device)) if causal else None
    return flex_masked(q, k, v, mask)[0]


def flex_masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """FlexAttention under a block mask (None: all keys): output, and log-sum-exp of each row of scores."""
    if not q.is_cuda and torch.is_grad_enabled() and q.requires_grad:
        return _dense_masked(q, k, v, mask)  # FlexAttention has no backward pass on a CPU
    attend = _compiled_flex() if q.is_cuda else flex_attention
    options = {"enable_gqa": q.shape[1] != k.shape[1], "return_aux": AuxRequest(lse=True)}
    out, more = attend(q, k, v, block_mask=mask, **options)
    return out, more.lse


def _dense_masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by its definition, with all scores at once."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1).float() for x in (k, v))
    scores = q.float() @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        rows, keys = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(~mask.mask_mod(0, 0, rows[:, None], keys), float("-inf"))
    return (scores.softmax(-1) @ v).to(q.dtype), scores.logsumexp(-1)


def gradients(
    attend: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], upstream: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Gradients of the inputs of `attend`, which runs forward first, from that of its output."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(attend(*leaves), leaves, upstream)


def causal_gradients(
    attend: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, upstream: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Gradients of causal attention, forward included."""
    return gradients(lambda q, k, v: attend(q, k, v, True), (q, k, v), upstream)


class FlashPart:
    """FlashAttention over some of a row's keys, and its gradients once the row's whole output and lse are known.

    The gradients of a part are those of the whole restricted to its keys: ds = p * (dp - sum(do * out)) needs of the
    other keys only the row's output and log-sum-exp.
    """

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
        self.q, self.causal, self.groups = q, causal, q.shape[1] // k.shape[1]
        if q.is_cuda:
            self.k, self.v = k, v
            made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
            self.saved = made[2:8]  # offsets, lengths and random state, as its backward pass wants them
        else:
            self.k, self.v = (x.repeat_interleave(self.groups, dim=1) for x in (k, v))
            made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, self.k, self.v, 0.0, causal)
        self.out, self.lse = made[0], made[1]

    def gradients(
        self, upstream: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of q, k and v."""
        inputs = (upstream, self.q, self.k, self.v, out, lse)
        if self.q.is_cuda:
            cum_q, cum_k, max_q, max_k, state, unused = self.saved
            return torch.ops.aten._scaled_dot_product_flash_attention_backward(
                *inputs, cum_q, cum_k, max_q, max_k, 0.0, self.causal, state, unused
            )
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, 0.0, self.causal)
        return dq, dk.unflatten(1, (-1, self.groups)).sum(2), dv.unflatten(1, (-1, self.groups)).sum(2)


def masked_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """PyTorch's choice of attention under a mask that is true where a query may look."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=q.shape[1] != k.shape[1])


def flash_paged(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """FlashAttention over pages, one query (sequences, heads, d) a sequence; it wants pages of 256 rows or a multiple.

    Pages are (pages, rows of a page, key heads, d). Raises on a GPU where there is no such path.
    """
    if not q.is_cuda:
        return flex_paged(q, k_pages, v_pages, table, lengths)
    starts = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
    longest = table.shape[1] * k_pages.shape[1]
    return torch.ops.aten._flash_attention_forward(
        q, k_pages, v_pages, starts, None, 1, longest, 0.0, False, False, seqused_k=lengths, block_table=table
    )[0]


def flex_paged(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """FlexAttention over pages in place: its block mask is the table, one block a page."""
    sequences, pages, rows = len(q), k_pages.shape[0], k_pages.shape[1]
    used = (lengths + rows - 1) // rows
    holds = torch.full((sequences, pages + 1), -1, dtype=torch.int32, device=q.device)  # last column: entries unused
    slots = torch.arange(table.shape[1], dtype=torch.int32, device=q.device)
    valid = slots < used[:, None]
    holds.scatter_(1, torch.where(valid, table, pages).long(), slots.expand_as(table))

    def visible(b: torch.Tensor, h: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        slot = holds[b, place // rows]
        return (slot >= 0) & (slot * rows + place % rows < lengths[b])

    indices = torch.zeros(sequences, 1, 1, pages, dtype=torch.int32, device=q.device)
    indices[..., : table.shape[1]] = table[:, None, None]
    mask = BlockMask.from_kv_blocks(
        used.to(torch.int32)[:, None, None], indices, BLOCK_SIZE=(128, rows), mask_mod=visible,
        seq_lengths=(1, pages * rows), compute_q_blocks=False,
    )  # fmt: skip
    k, v = (x.flatten(0, 1).transpose(0, 1).unsqueeze(0).expand(sequences, -1, -1, -1) for x in (k_pages, v_pages))
    return flex_masked(q.unsqueeze(2), k, v, mask)[0].squeeze(2)
