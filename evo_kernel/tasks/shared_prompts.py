"""What shared-prompt attention is timed against: what one does without a kernel for it. Shapes as in the task.

Index tensors and masks are made once for each set of shapes, as a training step would for all of its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from evo_kernel.tasks import vendor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Layout:
    """Where the rows of responses lie; `padded` gathers them into N equal blocks, `packed` takes them back."""

    prompt: int
    starts: tuple[int, ...]
    device: torch.device

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in pairwise(self.starts))

    @cached_property
    def _indices(self) -> Pair:
        """Of `padded` and `packed`."""
        longest = max(self.lengths)
        padded = torch.zeros(len(self.lengths), longest, dtype=torch.long)
        for number, (start, length) in enumerate(zip(self.starts, self.lengths, strict=False)):
            padded[number, :length] = torch.arange(start, start + length)
        valid = torch.arange(longest) < torch.tensor(self.lengths)[:, None]
        return padded.flatten().to(self.device), valid.flatten().nonzero().squeeze(1).to(self.device)

    def padded(self, rows: Tensor) -> Tensor:
        """(sum of lengths, …) -> (N, longest, …); what fills up is some row, which causal attention never sees."""
        if len(set(self.lengths)) > 1:
            rows = rows.index_select(0, self._indices[0])
        return rows.unflatten(0, (len(self.lengths), -1))

    def packed(self, blocks: Tensor) -> Tensor:
        """(N, longest, …) -> (sum of lengths, …)"""
        flat = blocks.flatten(0, 1)
        return flat.index_select(0, self._indices[1]) if len(set(self.lengths)) > 1 else flat

    @cached_property
    def valid(self) -> Tensor:
        """(N, longest, 1, 1): which rows of `padded` are rows of a response."""
        rows = torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]
        return rows[..., None, None].to(self.device)

    @cached_property
    def mask(self) -> Any:
        """The block mask over [prompt, responses], of queries and of keys."""
        counts = torch.tensor([self.prompt, *self.lengths])
        owner = torch.arange(len(counts)).repeat_interleave(counts).to(self.device)  # 0: the prompt

        def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return ((owner[kv] == 0) & (owner[q] > 0)) | ((owner[q] == owner[kv]) & (kv <= q))

        total = self.prompt + self.starts[-1]
        return create_block_mask(visible, None, None, total, total, device=str(self.device))


_LAYOUTS: dict[tuple[int, int, int, str], Layout] = {}


def layout(k_ctx: Tensor, k_dec: Tensor, cu: Tensor) -> Layout:
    """The layout of these inputs. Offsets are read on the first call: while a graph is captured nothing can be read."""
    key = (len(k_ctx), len(k_dec), len(cu), str(cu.device))
    if key not in _LAYOUTS:
        _LAYOUTS.clear()
    capturing = cu.is_cuda and torch.cuda.is_current_stream_capturing()
    if not capturing:
        starts = tuple(cu.tolist())
        if key not in _LAYOUTS or _LAYOUTS[key].starts != starts:
            _LAYOUTS[key] = Layout(len(k_ctx), starts, cu.device)
    return _LAYOUTS[key]


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(-3, -2)


def replicated(q: Tensor, k_ctx: Tensor, v_ctx: Tensor, k_dec: Tensor, v_dec: Tensor, cu: Tensor) -> Pair:
    """One causal attention over N sequences of prompt and response."""
    where, p = layout(k_ctx, k_dec, cu), len(k_ctx)

    def sequences(prompt: Tensor, responses: Tensor) -> Tensor:
        return _heads_first(torch.cat([prompt.expand(len(cu) - 1, *prompt.shape), where.padded(responses)], dim=1))

    out, lse = vendor.attention_lse(sequences(q[:p], q[p:]), sequences(k_ctx, k_dec), sequences(v_ctx, v_dec), True)
    out, lse = _heads_first(out), lse.mT  # both (N, rows, heads, …)
    rows = [torch.cat([x[0, :p], where.packed(x[:, p:])]) for x in (out, lse)]
    return rows[0], rows[1].mT.contiguous()


def three_parts(q: Tensor, k_ctx: Tensor, v_ctx: Tensor, k_dec: Tensor, v_dec: Tensor, cu: Tensor) -> Pair:
    """The prompt over itself; all responses over the prompt; each response over itself; the last two merged."""
    where, p = layout(k_ctx, k_dec, cu), len(k_ctx)
    keys, values = (_heads_first(x).unsqueeze(0) for x in (k_ctx, v_ctx))
    queries = _heads_first(q).unsqueeze(0)
    of_prompt = vendor.attention_lse(queries[:, :, :p], keys, values, True)
    over_prompt = vendor.attention_lse(queries[:, :, p:], keys, values, False)
    own_q, own_k, own_v = (_heads_first(where.padded(x)) for x in (q[p:], k_dec, v_dec))
    own = vendor.attention_lse(own_q, own_k, own_v, True)
    over_self = (where.packed(_heads_first(own[0])), where.packed(own[1].mT).mT)
    out, lse = vendor.merge_lse(
        (_heads_first(over_prompt[0][0]), over_prompt[1][0].mT), (over_self[0], over_self[1].mT)
    )
    return torch.cat([_heads_first(of_prompt[0][0]), out]), torch.cat([of_prompt[1][0], lse.mT], dim=1)


def flex(q: Tensor, k_ctx: Tensor, v_ctx: Tensor, k_dec: Tensor, v_dec: Tensor, cu: Tensor) -> Pair:
    """FlexAttention over [prompt, responses]."""
    mask = layout(k_ctx, k_dec, cu).mask
    pairs = (torch.cat([k_ctx, k_dec]), torch.cat([v_ctx, v_dec]))
    queries, keys, values = (_heads_first(x).unsqueeze(0) for x in (q, *pairs))
    out, lse = vendor.flex_masked(queries, keys, values, mask)
    return _heads_first(out[0]).contiguous(), lse[0]


def _gradients(forward: Callable[..., Pair], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Through a forward pass; `inputs` are those of `three_parts_gradients`."""
    *leaves, upstream, cu = inputs
    return vendor.gradients(lambda *given: forward(*given, cu)[0], leaves, upstream)


flex_gradients = partial(_gradients, flex)
replicated_gradients = partial(_gradients, replicated)
"""The copies' gradients are summed. Its rows of the prompt are those of the first copy."""


def three_parts_gradients(
    q: Tensor, k_ctx: Tensor, v_ctx: Tensor, k_dec: Tensor, v_dec: Tensor, upstream: Tensor, cu: Tensor
) -> tuple[Tensor, ...]:
    """The three calls of `three_parts` by FlashAttention, each backward with the merged output and log-sum-exp."""
    where, p = layout(k_ctx, k_dec, cu), len(k_ctx)
    keys, values, queries, given = (_heads_first(x).unsqueeze(0) for x in (k_ctx, v_ctx, q, upstream))
    prompt = vendor.FlashPart(queries[:, :, :p], keys, values, True)
    over = vendor.FlashPart(queries[:, :, p:], keys, values, False)
    own_q, own_k, own_v = (_heads_first(where.padded(x)) for x in (q[p:], k_dec, v_dec))
    own = vendor.FlashPart(own_q, own_k, own_v, True)
    of_own = (where.packed(_heads_first(own.out)), where.packed(own.lse.mT))
    out, lse = vendor.merge_lse((_heads_first(over.out[0]), over.lse[0].mT), of_own)
    dq, dk, dv = prompt.gradients(given[:, :, :p], prompt.out, prompt.lse)
    shared = over.gradients(given[:, :, p:], _heads_first(out).unsqueeze(0), lse.mT.unsqueeze(0).contiguous())
    own_given = _heads_first(where.padded(upstream[p:]) * where.valid)
    single = own.gradients(own_given, _heads_first(where.padded(out)), where.padded(lse).mT.contiguous())
    dq_own, dk_own, dv_own = (where.packed(_heads_first(x)) for x in single)
    dq = torch.cat([_heads_first(dq[0]), _heads_first(shared[0][0]) + dq_own])
    dk, dv = (_heads_first((a + b)[0]) for a, b in ((dk, shared[1]), (dv, shared[2])))
    return dq, dk, dv, dk_own, dv_own
