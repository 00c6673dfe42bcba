"""Traces a reference into a graph of operations by running it once on tensors without data.

In-place operations become functional ones (`torch.func.functionalize`). Values that the reference reads, such as
offsets, are computed from integer inputs; reading floating-point values is refused, because they differ in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

functionalization: Any = torch
"""PyTorch does not export what its own tracers use for this."""


class NotSliceable(Exception):
    """The reference cannot be evaluated by slices; the message says why."""


class TraceValue(NamedTuple):
    """One result of a node."""

    node: TraceNode
    number: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.results[self.number][0]

    @property
    def dtype(self) -> torch.dtype:
        return self.node.results[self.number][1]


@dataclass(eq=False)
class TraceNode:
    """One operation, an input of the reference (`input` is its position), or a constant tensor."""

    func: Any = None
    args: tuple[Any, ...] = ()  # `TraceValue` in place of tensors, here and in `kwargs`
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    input: int | None = None
    constant: torch.Tensor | None = None
    is_floating: bool = False  # whether values depend on a floating-point input

    @property
    def name(self) -> str:
        """The operation's name without overload."""
        return self.func._schema.name.removeprefix("aten::")

    @cached_property
    def values(self) -> list[TraceValue]:
        """The tensor arguments, in order."""
        values_found: list[TraceValue] = []
        _mapped((self.args, self.kwargs), TraceValue, values_found.append)
        return values_found

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments by their names in the schema, with defaults; `TraceValue` in place of tensors."""
        named = {parameter.name: parameter.default_value for parameter in self.func._schema.arguments}
        named |= {
            parameter.name: given for parameter, given in zip(self.func._schema.arguments, self.args, strict=False)
        }
        return {**named, **self.kwargs}

    def call(self, pieces: Sequence[torch.Tensor], func: Any = None) -> Any:
        """Call the operation, or another one, with these tensors in place of its tensor arguments."""
        left = iter(pieces)
        args, kwargs = _mapped((self.args, self.kwargs), TraceValue, lambda _: next(left))
        return (func or self.func)(*args, **kwargs)


class Lazy(torch.Tensor):
    """A tensor without data that represents a TraceValue."""

    value: TraceValue
    blank: torch.Tensor  # meta tensor of the same shape, strides and dtype
    tracer: ReferenceTracer
    has_views: bool  # whether other tensors may be views of the same memory

    @staticmethod
    def __new__(
        cls: type[Lazy], value: TraceValue, blank: torch.Tensor, tracer: ReferenceTracer, has_views: bool = False
    ) -> Lazy:
        lazy = torch.Tensor._make_wrapper_subclass(
            cls, blank.shape, strides=blank.stride(), dtype=blank.dtype, device=torch.device("cpu")
        )
        lazy.value, lazy.blank, lazy.tracer, lazy.has_views = value, blank, tracer, has_views
        return lazy

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Lazy({self.dtype}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        lazies: list[Lazy] = []
        _mapped((args, kwargs or {}), Lazy, lazies.append)
        return lazies[0].tracer.__torch_dispatch__(func, types, args, kwargs)


def trace(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[Any],
    concrete: Callable[[TraceValue], torch.Tensor],
    is_known: Callable[[Any], bool],
) -> tuple[TraceValue, ...]:
    """The outputs of `function`, with their graph, for inputs like these.

    Only shapes, dtypes, plain numbers and values of integer inputs are used.

    `concrete` computes a value that depends on integer inputs only; `is_known` tells for which operations there are
    slicing rules, so that they are not decomposed. Raises NotSliceable.
    """
    tracer = ReferenceTracer(concrete, is_known)
    given = [tracer.input(number, value) for number, value in enumerate(inputs)]
    try:
        with torch.no_grad(), _Reading(tracer), tracer:
            results = _functional(function, given)
    except NotSliceable:
        raise
    except Exception as error:  # whatever the reference or PyTorch's tracing raises, it cannot be sliced
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NotSliceable):
            cause = cause.__cause__ or cause.__context__
        raise cause or NotSliceable(f"{type(error).__name__}: {error}") from error
    return tuple(result.value if isinstance(result, Lazy) else tracer.constant(result) for result in results)


def _functional(function: Callable[..., Sequence[torch.Tensor]], given: Sequence[Any]) -> Sequence[Any]:
    """The results of a function whose in-place operations are replaced by functional ones.

    Like torch.func.functionalize, which however refuses references that compute gradients.
    """
    wrapped = [functionalization._to_functional_tensor(value) if isinstance(value, Lazy) else value for value in given]
    functionalization._enable_functionalization(reapply_views=True)
    try:
        results = [_unwrapped(result) for result in function(*wrapped)]
    finally:
        functionalization._disable_functionalization()
    for value, before in zip(wrapped, given, strict=True):
        if isinstance(before, Lazy) and _unwrapped(value) is not before:
            raise NotSliceable("it changes its input")
    return results


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    if functionalization._is_functional_tensor(tensor):
        functionalization._sync(tensor)
        return functionalization._from_functional_tensor(tensor)
    return tensor


class _Reading(TorchFunctionMode):
    """Handles functions that read a tensor's memory without dispatching an operation."""

    def __init__(self, tracer: ReferenceTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist or func is torch.Tensor.numpy:
            return func(self._tracer.read(args[0]))
        return func(*args, **(kwargs or {}))


class ReferenceTracer(TorchDispatchMode):
    """Records every operation while it is active."""

    def __init__(self, concrete: Callable[[TraceValue], torch.Tensor], is_known: Callable[[Any], bool]) -> None:
        super().__init__()
        self._concrete, self._is_known = concrete, is_known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while it is on; to say so would import the compiler, which takes a second

    def input(self, number: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        blank = _blank(value)
        is_floating = value.is_floating_point() or value.is_complex()
        node = TraceNode(results=_results([blank]), input=number, is_floating=is_floating)
        return Lazy(TraceValue(node, 0), blank, self, True)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor that depends on integer inputs only."""
        tensor = _unwrapped(tensor)
        return self._concrete(tensor.value) if isinstance(tensor, Lazy) else tensor

    def constant(self, value: torch.Tensor) -> TraceValue:
        if isinstance(value, Lazy) or value.is_meta:
            raise NotSliceable("a tensor without data in place of a constant")
        return TraceValue(TraceNode(results=_results([value]), constant=value), 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        if not self._is_known(func) and (steps := _steps(func)) is not None:
            with self:  # inactive while an operation is recorded, so that its computation is not
                return steps(*args, **kwargs)
        return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kept_args, kept_kwargs = _mapped((args, kwargs), torch.Tensor, self._kept)
        node = TraceNode(func, tuple(kept_args), kept_kwargs)
        node.is_floating = any(value.node.is_floating for value in node.values)
        if torch.Tag.nondeterministic_seeded in func.tags and node.arguments.get("dropout_p") != 0.0:
            raise NotSliceable(f"it draws random numbers by {func}")
        if _depends_on_values(node):
            return self._computed(node)
        blank_args, blank_kwargs = _mapped((args, kwargs), torch.Tensor, _blank)
        if "device" in node.arguments:
            blank_kwargs["device"] = "meta"
        blanks = func(*blank_args, **blank_kwargs)
        node.results = _results(blanks if isinstance(blanks, (tuple, list)) else [blanks])
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        if is_view:
            _mapped((args, kwargs), Lazy, lambda lazy: setattr(lazy, "has_views", True))
        numbers = itertools.count()
        return _mapped(blanks, torch.Tensor, lambda blank: Lazy(TraceValue(node, next(numbers)), blank, self, is_view))

    def _in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An in-place operation of PyTorch's own composites on a new tensor, which then represents the result."""
        target = args[0] if args else None
        packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
        functional = getattr(packet, func._overloadname, None)
        if not isinstance(target, Lazy) or target.has_views or functional is None or functional._schema.is_mutable:
            raise NotSliceable(f"it changes its input, or a tensor of another module, by {func}")
        result = self.__torch_dispatch__(functional, (), args, kwargs)
        if result.dtype != target.dtype or result.shape != target.shape:
            raise NotSliceable(f"it changes the dtype by {func}")
        target.value, target.blank = result.value, result.blank
        return target

    def _computed(self, node: TraceNode) -> Any:
        """The result of a data-dependent operation, whose values must follow from integer inputs."""
        if node.is_floating:
            raise NotSliceable(f"{node.func} depends on floating-point values")
        computed = node.call([self._concrete(value) for value in node.values])
        return _mapped(computed, torch.Tensor, lambda value: Lazy(self.constant(value), _blank(value), self, True))

    def _kept(self, tensor: torch.Tensor) -> TraceValue:
        return tensor.value if isinstance(tensor, Lazy) else self.constant(tensor)


@cache
def _steps(func: Any) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an operation, if it uses operations of the same kind."""
    decomposition = decomposition_table.get(func)
    if decomposition is not None and decomposition.__module__.startswith("torch._decomp"):
        return decomposition
    return func.decompose if func._can_decompose() else None


def _results(parts: Sequence[Any]) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shapes and dtypes of the tensors among results."""
    return tuple((tuple(part.shape), part.dtype) for part in parts if isinstance(part, torch.Tensor))


def _depends_on_values(node: TraceNode) -> bool:
    """Whether values determine the result's shape."""
    if node.name in ("index", "_unsafe_index"):  # a boolean mask
        return any(value.dtype in (torch.bool, torch.uint8) for value in node.values[1:])
    tags = node.func.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, Lazy):
        return tensor.blank
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _mapped(given: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Nested lists, tuples and dictionaries with all objects of this kind replaced."""
    if isinstance(given, kind):
        return change(given)
    if isinstance(given, (list, tuple)):
        return [_mapped(part, kind, change) for part in given]
    if isinstance(given, dict):
        return {name: _mapped(part, kind, change) for name, part in given.items()}
    return given
