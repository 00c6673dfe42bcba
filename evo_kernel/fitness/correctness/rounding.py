"""Rounding inside a computation: every operation's result is moved by about what rounding it would cost.

Monte Carlo arithmetic (Parker, Pierce and Eggert, Computing in Science & Engineering 2(4), 2000), at the granularity of
PyTorch's operations: what a computation makes of roundings of its intermediate results is found by making some. Moving
its inputs alone does not tell: of a sigmoid of zero nothing moves, yet 0.5 may be off by one rounding in an honest
kernel, and a group norm of nothing but 0.5 divides that by sqrt(eps).

Every element of a result goes up or down by one rounding, and by `growth` roundings more per square root of the length
of the sums it comes from (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2). Products of
matrices and convolutions are chains of as many steps as they have terms; plain sums are spread over lanes and blocks,
so that `longest` limits theirs. What is only selected, moved or compared is exact, and so is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

PATTERN = 1_000_003
"""Elements after which the signs repeat: a prime, so that no row or column has the same signs all along."""
_EXACT_NAMES = """
    arange bernoulli empty empty_like empty_strided exponential eye fill full full_like lift_fresh linspace new_empty
    new_empty_strided new_full new_ones new_zeros normal ones ones_like rand rand_like randint randint_like randn
    randn_like random randperm scalar_tensor uniform zero zeros zeros_like

    _reshape_alias _to_copy _unsafe_index _unsafe_view as_strided_copy cat clone constant_pad_nd copy embedding flip
    gather im2col index index_copy index_fill index_put index_select masked_fill masked_scatter masked_select
    pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat replication_pad1d
    replication_pad2d replication_pad3d resize roll rot90 scatter select_scatter slice_scatter split_with_sizes_copy
    stack take tril triu unfold_copy unsafe_chunk unsafe_split unsafe_split_with_sizes where

    abs adaptive_max_pool2d adaptive_max_pool3d amax amin aminmax ceil clamp clamp_max clamp_min cummax cummin floor
    fmax fmin hardtanh kthvalue logsumexp max max_pool2d_with_indices max_pool3d_with_indices maximum median min
    minimum mode neg relu relu6 round sgn sign sort threshold topk trunc upsample_nearest1d upsample_nearest2d
    upsample_nearest3d
"""
_EXACT = frozenset(_EXACT_NAMES.split())
"""Operations whose results need no rounding: what is made of nothing or drawn; what is moved; what is selected.

logsumexp is of the last kind: where one term outweighs all others it is that term, exactly, and gradients of attention
cancel by it. Where it is not, the reference's own dtype shows its rounding.
"""
_PRODUCTS: Mapping[str, int] = {
    "mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1,
}  # fmt: skip
"""Products of matrices, and which argument's last dimension is summed over."""
_SUMS = frozenset(["sum", "mean", "nansum", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm"])

_NORMS = frozenset(["native_group_norm"])
"""Norms that are taken apart: a group may be two numbers, which are 1 and -1 however they are moved."""


class Rounding(TorchDispatchMode):
    """While it is on, floating-point results of operations are moved by roundings of `unit` (relative)."""

    def __init__(self, unit: float, growth: float, longest: int, pattern: int = 0) -> None:
        super().__init__()
        self._unit, self._growth, self._longest, self._pattern = unit, growth, longest, pattern
        self._signs: dict[torch.device, torch.Tensor] = {}
        self._moved = 0  # operations so far: each takes the signs from another place

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while it is on; to say so would import the compiler, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if (steps := _steps(func)) is not None:
            return self._by_steps(steps, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if _name(func) in _EXACT or _is_view(func):
            return result
        amount = self._unit * (1.0 + self._growth * math.sqrt(self._length(func, args, result)))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, torch.Tensor) and part.is_floating_point() and part.numel():
                self._move(part, amount)
        return result

    def _by_steps(self, steps: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Sums inside a norm count one rounding: how they grow with their length is in the bound of the output."""
        growth, self._growth = self._growth, 0.0
        try:
            with self:
                return steps(*args, **kwargs)
        finally:
            self._growth = growth

    def _move(self, values: torch.Tensor, amount: float) -> None:
        """In place, and with little memory beside: intermediate results may be most of what a GPU holds."""
        if any(stride == 0 and size > 1 for stride, size in zip(values.stride(), values.shape, strict=True)):
            return  # one number in many places cannot be moved in each
        self._moved += 1
        flat = _flat(values)
        start = self._moved * 7919 % PATTERN
        factors = 1.0 + amount * self._signs_on(values.device)[start : start + min(flat.numel(), PATTERN)]
        whole = flat.numel() // PATTERN * PATTERN
        if whole:
            flat[:whole].view(-1, PATTERN).mul_(factors)
        flat[whole:].mul_(factors[: flat.numel() - whole])
        if flat.data_ptr() != values.data_ptr():
            values.copy_(flat.view(values.shape))

    def _signs_on(self, device: torch.device) -> torch.Tensor:
        if device not in self._signs:
            generator = torch.Generator(device).manual_seed(20240229 + self._pattern)
            up = torch.randint(0, 2, (PATTERN,), generator=generator, dtype=torch.int8, device=device)
            self._signs[device] = up.double().mul_(2.0).sub_(1.0).repeat(2)  # so that any place can be the first
        return self._signs[device]

    def _length(self, func: Any, args: Sequence[Any], result: Any) -> float:
        """How many terms the sums of an operation have; 0 where it has none, or they are its own affair."""
        name = _name(func)
        if (position := _PRODUCTS.get(name)) is not None:
            return args[position].shape[-1]
        if name == "convolution":
            weight, is_transposed = args[1], args[6]
            terms = weight.numel() / max(1, weight.shape[0])
            if is_transposed:  # weights are (in, out / groups, ...), and strides part the window between outputs
                terms = weight.numel() / max(1, weight.shape[1]) / max(1, args[8]) / math.prod(args[3])
            return terms
        if name in _SUMS:
            first = result[0] if isinstance(result, (tuple, list)) else result
            return min(args[0].numel() / max(1, first.numel()), self._longest)
        return 0.0


def _flat(values: torch.Tensor) -> torch.Tensor:
    """All elements as one row: of the same memory where they lie densely, else a copy."""
    places = sorted((s, n) for s, n in zip(values.stride(), values.shape, strict=True) if n > 1)
    reach = 1
    for stride, size in places:
        if stride != reach:
            return values.reshape(-1).clone()
        reach *= size
    return values.as_strided((values.numel(),), (1,))


@cache
def _steps(func: Any) -> Callable[..., Any] | None:
    """A norm as its mean, differences, variance and quotient: where differences cancel, only they show its rounding."""
    return get_decompositions([func]).get(func) if _name(func) in _NORMS else None


def _name(func: Any) -> str:
    """An operation without its overload and, where it works in place, without the mark of that."""
    name = func._schema.name.partition("::")[2]
    return name if name.endswith("__") else name.removesuffix("_")


def _is_view(func: Any) -> bool:
    """Whether what it returns is memory of its arguments, which it does not write."""
    infos = [returned.alias_info for returned in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos)
