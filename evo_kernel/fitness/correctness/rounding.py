"""Simulates rounding inside a computation: perturbs every operation's result by about one rounding.

This is Monte Carlo arithmetic (Parker, Pierce and Eggert, Computing in Science & Engineering 2(4), 2000) applied to
PyTorch's operations. It measures the effect of rounding intermediate results, which perturbing the inputs does not
show: perturbing a zero does not change its sigmoid, yet an honest kernel may compute 0.5 with an error of one
rounding, and a group norm of a constant 0.5 divides this error by sqrt(eps).

Every element of a result is increased or decreased by one rounding, plus `growth` roundings per square root of the
length of its sums (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2). Matrix products and
convolutions are sequential sums over all their terms; other sums are split over lanes and blocks, so `longest` limits
their length. Selecting, moving and comparing are exact, and zero stays zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from evo_kernel.tasks.blank import by_name

PATTERN = 1_000_003
_CODES = sorted(range(1, 32), key=int.bit_count)
"""An operation's direction in a pattern is the parity of what both have in common: of five, all combinations occur."""
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

    abs adaptive_max_pool2d adaptive_max_pool3d amax amin aminmax argmax argmin ceil clamp clamp_max clamp_min cummax
    cummin floor fmax fmin hardtanh kthvalue logsumexp max max_pool2d_with_indices max_pool3d_with_indices maximum
    median min minimum mode neg relu relu6 round sgn sign sort threshold topk trunc upsample_nearest1d
    upsample_nearest2d upsample_nearest3d
"""
_EXACT = frozenset(_EXACT_NAMES.split())
"""Operations with exact results: constants and random draws; moves; selections.

logsumexp counts as a selection: if one term dominates it equals that term exactly, and gradients of attention cancel
it. Otherwise the reference in its own dtype shows its rounding.
"""
_OF_WHOLES = frozenset(["add", "sub", "mul"])
"""Operations with exact results where all numbers are whole, such as a zero point added to steps."""
_PRODUCTS: Mapping[str, int] = {
    "mm": 0, "bmm": 0, "matmul": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1,
}  # fmt: skip
"""Matrix products (`matmul` inside decompositions), and the argument whose last dimension is summed."""
_SUMS = frozenset(["sum", "mean", "nansum", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm"])

_ALONG_AN_AXIS = frozenset(["_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "prod"])
_OVER_SIZES = frozenset(["native_layer_norm", "_fused_rms_norm", "avg_pool2d", "avg_pool3d"])
"""Operations that add or multiply along the axis, and over the sizes of axes or windows, that their second argument
names."""
_NORMS = frozenset(["native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"])
"""Norms that are decomposed: two numbers become 1 and -1 however they are perturbed, unless their mean is."""


class Rounding(TorchDispatchMode):
    """While active, perturbs floating-point results of operations by roundings of `unit` (relative).

    `inexact`: those alone that float32 does not hold, each operation's in one direction: patterns 0 to 15 are all
    combinations of the first four. float64 is not converted to it then, which would hide them.
    """

    def __init__(self, unit: float, growth: float, longest: int, pattern: int = 0, inexact: bool = False) -> None:
        super().__init__()
        self._inexact = inexact
        self._unit, self._growth, self._longest, self._pattern = unit, growth, longest, pattern
        self._signs: dict[torch.device, torch.Tensor] = {}
        self._moved = 0  # operations so far: each uses another offset in the signs, or another code
        self.length = 0.0  # of the longest sum so far whose length is known
        self.sums = False  # whether an operation may have added up elements in a number that is not known
        self.unsimulated = False  # whether errors of a sum may have grown by more than was simulated
        self.products = 0  # so far

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # nothing is compiled while it is active; the default would import the compiler, which takes a second
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if (steps := _steps(func)) is not None:
            return self._by_steps(steps, args, kwargs or {})
        if self._inexact and _name(func) == "_to_copy" and args[0].dtype == torch.float64:
            kwargs = {key: value for key, value in (kwargs or {}).items() if value != torch.float32}
        result = func(*args, **(kwargs or {}))
        length = self._length(func, args, result)
        known = length or _length_of_rows(_name(func), args)
        self.length = max(self.length, known)
        self.sums = self.sums or (not known and _may_sum(func))
        self.unsimulated |= self._growth == 0.0 or (not length and (known > 0 or _may_sum(func)))
        self.products += _name(func) == "convolution" or _name(func) in _PRODUCTS
        if _name(func) in _EXACT or _is_view(func) or (_name(func) in _OF_WHOLES and _are_whole((*args, result))):
            return result
        amount = self._unit * (1.0 + self._growth * math.sqrt(length))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, torch.Tensor) and part.is_floating_point() and part.numel():
                if self._inexact:
                    self._shift(part, ~_is_exact(part, func, args, kwargs or {}), amount)
                else:
                    self._move(part, amount)
        return result

    def _by_steps(self, steps: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Sums inside a norm have one rounding: the output's bound includes the growth with their length."""
        growth, self._growth = self._growth, 0.0
        try:
            with self:
                return steps(*args, **kwargs)
        finally:
            self._growth = growth

    def _shift(self, values: torch.Tensor, places: torch.Tensor, amount: float) -> None:
        if any(stride == 0 and size > 1 for stride, size in zip(values.stride(), values.shape, strict=True)):
            return
        if places.any():
            odd = (self._pattern & _CODES[self._moved % len(_CODES)]).bit_count() % 2
            self._moved += 1
            values.copy_(torch.where(places, values * (1.0 + (-amount if odd else amount)), values))

    def _move(self, values: torch.Tensor, amount: float) -> None:
        """In place, with little extra memory: intermediate results may fill most of a GPU."""
        if any(stride == 0 and size > 1 for stride, size in zip(values.stride(), values.shape, strict=True)):
            return  # a broadcast number cannot be perturbed separately in each place
        self._moved += 1
        flat = flat_of(values)
        start = self._moved * 7919 % PATTERN
        wanted = self._signs_on(values.device)[start : start + min(flat.numel(), PATTERN)]
        factors = wanted.double().mul_(amount).add_(1.0)
        whole = flat.numel() // PATTERN * PATTERN
        if whole:
            flat[:whole].view(-1, PATTERN).mul_(factors)
        flat[whole:].mul_(factors[: flat.numel() - whole])
        if flat.data_ptr() != values.data_ptr():
            values.copy_(flat.view(values.shape))

    def _signs_on(self, device: torch.device) -> torch.Tensor:
        if device not in self._signs:
            self._signs[device] = _twice(self._pattern, PATTERN).to(device)
        return self._signs[device]

    def _length(self, func: Any, args: Sequence[Any], result: Any) -> float:
        """Number of terms of an operation's sums; 0 if it has none or they are not perturbed."""
        name = _name(func)
        if (position := _PRODUCTS.get(name)) is not None:
            return args[position].shape[-1]
        if name == "convolution":
            weight, is_transposed = args[1], args[6]
            terms = weight.numel() / max(1, weight.shape[0])
            if is_transposed:  # weights are (in, out / groups, ...), and strides divide the window
                terms = weight.numel() / max(1, weight.shape[1]) / max(1, args[8]) / math.prod(args[3])
            return terms
        if name in _SUMS:
            first = result[0] if isinstance(result, (tuple, list)) else result
            return min(args[0].numel() / max(1, first.numel()), self._longest)
        return 0.0


_SAMPLERS = frozenset(["grid_sampler_2d", "grid_sampler_3d"])
"""Operations that add up values of their first argument at places that the second one names."""
_LINEAR = frozenset([
    *_PRODUCTS, "convolution", "sum", "mean", "nansum", "cumsum", "add", "sub", "rsub", "avg_pool2d", "avg_pool3d",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "col2im", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "trace", "index_add", "scatter_add", "scatter_reduce", "scatter",
    "index_put", "_index_put_impl", "_unsafe_index_put", "_embedding_bag", "_embedding_bag_forward_only", "addcdiv",
    "addcmul", "lerp", *_SAMPLERS,
])  # fmt: skip
"""Operations that add up their arguments, or products of these, or move them: of arguments without signs nothing
cancels."""
_UNCANCELLED = frozenset([
    "_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "_fused_rms_norm", "glu", "hardswish",
    "_prelu_kernel", "_weight_norm_interface", "logcumsumexp", "cumprod", "prod", "mse_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy", "nll_loss_forward", "nll_loss2d_forward", *_SUMS,
])  # fmt: skip
"""Others that add up, where signs make little difference to what rounding does, or that are not said to be pointwise
though they add nothing up."""

_MOST_SCORES = 1 << 27
"""Of queries with keys, which attention by products holds at once: a gigabyte each time."""


class Cancelling(Rounding):
    """The same, and moves the result of each sum by `share` roundings of what it is for arguments without signs."""

    def __init__(self, unit: float, growth: float, longest: int, share: float) -> None:
        super().__init__(unit, growth, longest)
        self._share = share
        self.knows = True  # of every operation so far, what its sums are without signs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, whole = _name(func), None
        if name.startswith("_scaled_dot_product") and not name.endswith("_backward"):
            query, key = args[:2]
            if math.prod((*query.shape[:-1], key.shape[-2])) <= _MOST_SCORES:
                with self:
                    return attention_by_products(func, args, kwargs or {})
        if name in _LINEAR and any(map(_is_float, args)):
            whole = _first(_without_signs(func, args, kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        is_known = name in _LINEAR | _UNCANCELLED or not _may_sum(func) or _steps(func) is not None
        if not is_known and any(map(_is_float, tree_leaves(result))):  # indices and booleans are no sums
            self.knows = False
        if whole is not None and _is_float(sums := _first(result)):
            amount = self._unit * self._share
            sums.sub_(whole, alpha=amount)
            self._move(whole, 1.0)  # to twice as much, or to zero
            sums.add_(whole, alpha=amount)
        return result


def _without_signs(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The result of a sum for arguments without signs."""
    if _name(func) in ("add", "sub", "rsub"):
        return abs(args[0]) + abs(args[1]) * abs(kwargs.get("alpha", 1))
    if _name(func) == "lerp":
        return abs(args[0]) + abs(args[2]) * (abs(args[0]) + abs(args[1]))
    unsigned = 1 if _name(func) in _SAMPLERS else len(args)
    tensors = [one.abs() if number < unsigned and _is_float(one) else one for number, one in enumerate(args)]
    scales = ("alpha", "beta", "value")
    return func(*tensors, **{name: abs(one) if name in scales else one for name, one in kwargs.items()})


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) else result


def _length_of_rows(name: str, args: Sequence[Any]) -> int:
    """Number of terms that an operation adds up in each row, whose results are not moved by more for it; 0 if that is
    not known."""
    if name in _ALONG_AN_AXIS:
        return args[0].shape[args[1]] if args[0].dim() and len(args) > 1 else args[0].numel()
    if name.startswith("_scaled_dot_product"):  # of a query with a key, and over the keys
        return max(args[1].shape[-2:])
    return math.prod(args[1]) if name in _OVER_SIZES else 0


def _is_exact(values: torch.Tensor, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Where float32 holds the results of an operation, and a kernel has them too: of a division only by a power of two,
    since others are multiplications by the reciprocal."""
    exact = values.float() == values
    if _name(func) == "div" and kwargs.get("rounding_mode") is None:
        exact &= torch.frexp(torch.as_tensor(args[1]).double()).mantissa.abs() == 0.5
    return exact


def _are_whole(values: Sequence[Any]) -> bool:
    """Whether all elements are whole numbers that float32 holds."""
    floats = [torch.as_tensor(v) for v in values if isinstance(v, (float, torch.Tensor))]
    floats = [v for v in floats if v.is_floating_point()]
    corners = (v[(slice(4),) * v.dim()].flatten().tolist() for v in floats)  # mostly tell, without memory for all
    if not all(x.is_integer() and abs(x) <= 2**24 for corner in corners for x in corner):
        return False
    return all(bool(((v.round() == v) & (v.abs() <= 2**24)).all()) for v in floats)


class Contracted(TorchDispatchMode):
    """While active, changes the float32 operands of products, as tensor cores do, but no other operation's."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self._change = unnoticed(change)
        self.any = False  # whether there was a product
        self.hidden = False  # whether a library computed some within a layer of a recurrent network

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = _name(func), kwargs or {}
        self.hidden = self.hidden or name in ("mkldnn_rnn_layer", "_cudnn_rnn")
        if name.startswith("_scaled_dot_product") and not name.endswith("_backward"):
            with self:
                return attention_by_products(func, args, kwargs)
        first = 0 if name == "convolution" else _PRODUCTS.get(name)
        if first is None:
            return func(*args, **kwargs)
        self.any = True
        return func(*args[:first], *map(self._change, args[first : first + 2]), *args[first + 2 :], **kwargs)


def attention_by_products(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Attention as two products, which active modes see."""
    given = by_name(func, args, kwargs)
    mask = given.get("attn_mask", given.get("attn_bias"))
    tensors = given["query"], given["key"], given["value"], mask
    options = {"is_causal": given.get("is_causal", False), "scale": given.get("scale"), "enable_gqa": True}
    made, _ = torch.ops.aten._scaled_dot_product_attention_math.default.decompose(*tensors, **options)
    with _disable_current_modes():
        others = func(*args, **kwargs)[1:]
    return made, *others


class ComputedDtypes(TorchDispatchMode):
    """While active, notes the floating-point dtypes in which each tensor is computed: not those of operations that
    convert, move or select."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, frozenset[torch.dtype]] = {}  # by memory, which a later tensor may have

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def of(self, tensor: torch.Tensor) -> frozenset[torch.dtype]:
        return self._seen.get(tensor.untyped_storage().data_ptr(), frozenset())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        seen = frozenset().union(*(self.of(v) for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)))
        parts = [part for part in tree_leaves(result) if isinstance(part, torch.Tensor)]
        if _name(func) not in _EXACT and not _is_view(func):
            seen |= {part.dtype for part in parts if part.is_floating_point()}
        self._seen |= {part.untyped_storage().data_ptr(): seen for part in parts}
        return result


class NarrowDtypes(TorchDispatchMode):
    """While active, notes every operation's name, and the narrow floating-point dtype of its result, if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype | None]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_narrow = isinstance(result, torch.Tensor) and result.is_floating_point() and result.element_size() < 4
        self.seen.append((_name(func), result.dtype if is_narrow else None))
        return result


def unnoticed(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, whose own operations active modes do not see."""

    def changed(value: Any) -> Any:
        with _disable_current_modes():
            return change(value)

    return changed


class Narrowed(TorchDispatchMode):
    """While active, rounds results of the same operations in wide dtypes to the narrow ones that were noted."""

    def __init__(self, seen: Sequence[tuple[str, torch.dtype | None]]) -> None:
        super().__init__()
        self._seen, self._done = seen, 0
        self.is_alike = True  # so far, as noted

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name, dtype = self._seen[self._done] if self._done < len(self._seen) else ("", None)
        self.is_alike, self._done = self.is_alike and name == _name(func), self._done + 1
        if dtype is None or not self.is_alike or _is_view(func) or not isinstance(result, torch.Tensor):
            return result
        rounded = result.to(dtype).to(result.dtype)
        return result.copy_(rounded) if func._schema.is_mutable else rounded


def signs(pattern: int, count: int) -> torch.Tensor:
    """So many random numbers, 1 or -1, or `PATTERN` if these are fewer: int8 on the host, not to be changed; the same
    for the same pattern."""
    return _twice(pattern, PATTERN)[: min(count, PATTERN)]


@lru_cache(maxsize=16)
def _twice(pattern: int, count: int) -> torch.Tensor:
    """The numbers one time after the other, so that any place can be the first."""
    random = np.random.default_rng(20240229 + pattern).bytes(count // 8 + 1)
    bits = np.unpackbits(np.frombuffer(random, dtype=np.uint8), count=count).view(np.int8)
    return torch.from_numpy(np.tile(2 * bits - 1, 2))


def flat_of(values: torch.Tensor) -> torch.Tensor:
    """All elements as one row: a view if they are dense, else a copy."""
    places = sorted((s, n) for s, n in zip(values.stride(), values.shape, strict=True) if n > 1)
    reach = 1
    for stride, size in places:
        if stride != reach:
            return values.reshape(-1).clone()
        reach *= size
    return values.as_strided((values.numel(),), (1,))


@cache
def _steps(func: Any) -> Callable[..., Any] | None:
    """A norm's decomposition into mean, differences, variance and quotient, which shows rounding under cancellation."""
    return get_decompositions([func]).get(func) if _name(func) in _NORMS else None


def _name(func: Any) -> str:
    """An operation's name without overload and in-place suffix."""
    name = func._schema.name.partition("::")[2]
    return name if name.endswith("__") else name.removesuffix("_")


@cache
def _may_sum(func: Any) -> bool:
    """Whether it may add elements up: all operations but elementwise ones, moves and selections."""
    name = _name(func)
    if name in ("index_put", "scatter"):
        return True  # with `accumulate` and `reduce`
    return name not in _EXACT and not _is_view(func) and torch.Tag.pointwise not in func.tags


def may_contract(func: Any) -> bool:
    """Whether it may add products up, or be one of the additions of which a reference makes that."""
    return _name(func) in ("add", "sub", "addcmul") or _may_sum(func)


def _is_view(func: Any) -> bool:
    """Whether it returns views of its arguments, or makes them such views, without writing elements."""
    if torch.Tag.inplace_view in func.tags:
        return True
    infos = [returned.alias_info for returned in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos)
