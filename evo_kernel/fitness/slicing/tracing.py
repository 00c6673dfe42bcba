"""A reference as a graph of operations, found by running it once on tensors without data.

In-place operations become functional ones (`torch.func.functionalize`). Where the reference asks for values, of offsets
say, they are computed from the integer inputs; floating-point values are refused, because they differ in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten


class NotSliceable(Exception):
    """The reference cannot be evaluated by slices; the message says why."""


class Value(NamedTuple):
    """One result of a node."""

    node: Node
    number: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.results[self.number][0]

    @property
    def dtype(self) -> torch.dtype:
        return self.node.results[self.number][1]


@dataclass(eq=False)
class Node:
    """One operation, an input of the reference (`input` is its position), or a constant tensor."""

    func: Any = None
    leaves: Sequence[Any] = ()  # arguments, flattened; `Value` in place of tensors
    spec: TreeSpec | None = None
    results: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    input: int | None = None
    constant: torch.Tensor | None = None
    is_floating: bool = False  # whether values depend on a floating-point input

    @property
    def name(self) -> str:
        """The operation without its overload."""
        return self.func._schema.name.removeprefix("aten::")

    @property
    def values(self) -> list[Value]:
        """The tensor arguments, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Value)]

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments by their names in the schema, defaults filled in; `Value` in place of tensors."""
        assert self.spec is not None
        args, kwargs = tree_unflatten(list(self.leaves), self.spec)
        named = {parameter.name: parameter.default_value for parameter in self.func._schema.arguments}
        named |= {parameter.name: given for parameter, given in zip(self.func._schema.arguments, args, strict=False)}
        return named | kwargs

    def call(self, pieces: Sequence[torch.Tensor]) -> Any:
        """The operation on these in place of its tensor arguments."""
        left = iter(pieces)
        leaves = [next(left) if isinstance(leaf, Value) else leaf for leaf in self.leaves]
        assert self.spec is not None
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)


@dataclass(frozen=True)
class Graph:
    """What a reference does, for inputs of one set of shapes and dtypes (and these values of integer ones)."""

    outputs: tuple[Value, ...]


class Lazy(torch.Tensor):
    """A tensor without data, which knows the value that it stands for."""

    value: Value
    fake: torch.Tensor
    tracer: Tracer
    is_shared: bool  # whether other tensors may be views of the same memory

    @staticmethod
    def __new__(cls, value: Value, fake: torch.Tensor, tracer: Tracer, is_shared: bool = False) -> Lazy:
        made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, fake.shape, strides=fake.stride(), dtype=fake.dtype, device=fake.device
        )
        made.value, made.fake, made.tracer, made.is_shared = value, fake, tracer, is_shared
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Lazy({self.dtype}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        leaves, _ = tree_flatten((args, kwargs))
        tracer = next(leaf.tracer for leaf in leaves if isinstance(leaf, Lazy))
        return tracer.__torch_dispatch__(func, types, args, kwargs)


def trace(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[Any],
    concrete: Callable[[Value], torch.Tensor],
    is_known: Callable[[Any], bool],
) -> Graph:
    """The graph of `function` on inputs like these, of which only shapes, dtypes and plain numbers are looked at.

    `concrete` computes a value that depends on integer inputs alone; `is_known` says of which operations the slicing
    rules know something, so that they need not be broken up. Raises NotSliceable.
    """
    tracer = Tracer(concrete, is_known)
    given = [tracer.input(number, value) for number, value in enumerate(inputs)]
    try:
        with torch.no_grad(), _Reading(tracer), tracer:
            results = torch.func.functionalize(function, remove="mutations")(*given)
    except NotSliceable:
        raise
    except Exception as error:  # whatever the user's reference or PyTorch's tracing raises: it cannot be sliced
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NotSliceable):
            cause = cause.__cause__ or cause.__context__
        raise cause or NotSliceable(f"{type(error).__name__}: {error}") from error
    return Graph(tuple(result.value if isinstance(result, Lazy) else tracer.constant(result) for result in results))


class _Reading(TorchFunctionMode):
    """Answers what reads the memory of a tensor without asking an operation for it."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist or func is torch.Tensor.numpy:
            return func(self._tracer.read(args[0]))
        return func(*args, **(kwargs or {}))


class Tracer(TorchDispatchMode):
    """Records every operation while it is on."""

    def __init__(self, concrete: Callable[[Value], torch.Tensor], is_known: Callable[[Any], bool]) -> None:
        super().__init__()
        self._concrete, self._is_known = concrete, is_known
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)

    def input(self, number: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with self._fakes:
            fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        node = Node(results=_results([fake]), input=number, is_floating=_is_floating(value))
        return Lazy(Value(node, 0), fake, self, is_shared=True)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor that depends on integer inputs alone."""
        if torch._is_functional_tensor(tensor):
            torch._sync(tensor)
            tensor = torch._from_functional_tensor(tensor)
        return self._concrete(tensor.value) if isinstance(tensor, Lazy) else tensor

    def constant(self, value: torch.Tensor) -> Value:
        if isinstance(value, FakeTensor | Lazy):
            raise NotSliceable("a tensor without data in place of a constant")
        return Value(Node(results=_results([value]), constant=value), 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        if not self._is_known(func) and (steps := _steps(func)) is not None:
            with self:
                return steps(*args, **kwargs)
        return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        kept = [self._kept(leaf) for leaf in leaves]
        faked = [self._faked(leaf) for leaf in leaves]
        node = Node(func, kept, spec, is_floating=any(v.node.is_floating for v in kept if isinstance(v, Value)))
        if torch.Tag.nondeterministic_seeded in func.tags and node.arguments.get("dropout_p") != 0.0:
            raise NotSliceable(f"it draws random numbers by {func}")
        try:
            fake_args, fake_kwargs = tree_unflatten(faked, spec)
            with self._fakes:
                made = func(*fake_args, **fake_kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._computed(node)
        parts, layout = tree_flatten(made)
        node.results = _results(parts)
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        for leaf in leaves if is_view else ():
            if isinstance(leaf, Lazy):
                leaf.is_shared = True
        wrapped = [
            Lazy(Value(node, number), part, self, is_shared=is_view) if isinstance(part, torch.Tensor) else part
            for number, part in enumerate(parts)
        ]
        return tree_unflatten(wrapped, layout)

    def _in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What PyTorch's own composites do to a tensor that they have just made: it stands for the result then."""
        target = args[0] if args else None
        found = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
        functional = getattr(found, func._overloadname, None)
        if not isinstance(target, Lazy) or target.is_shared or functional is None or functional._schema.is_mutable:
            raise NotSliceable(f"it changes its input, or a tensor of another module, by {func}")
        result = self.__torch_dispatch__(functional, (), args, kwargs)
        if result.dtype != target.dtype or result.shape != target.shape:
            raise NotSliceable(f"it changes the dtype by {func}")
        target.value, target.fake = result.value, result.fake
        return target

    def _computed(self, node: Node) -> Any:
        """The result of an operation that depends on values: they must follow from integer inputs."""
        if node.is_floating:
            raise NotSliceable(f"{node.func} depends on floating-point values")
        made = node.call([self._concrete(value) for value in node.values])
        return tree_map_only(torch.Tensor, self._wrapped, made)

    def _wrapped(self, value: torch.Tensor) -> Lazy:
        return Lazy(self.constant(value), self._fakes.from_tensor(value), self, is_shared=True)

    def _kept(self, leaf: Any) -> Any:
        if isinstance(leaf, Lazy):
            return leaf.value
        return self.constant(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _faked(self, leaf: Any) -> Any:
        if isinstance(leaf, Lazy):
            return leaf.fake
        return self._fakes.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


@cache
def _steps(func: Any) -> Callable[..., Any] | None:
    """How PyTorch takes an operation apart, where it does so into operations of the same kind."""
    found = decomposition_table.get(func)
    return found if found is not None and found.__module__.startswith("torch._decomp") else None


def _results(parts: Sequence[Any]) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shapes and dtypes of tensors among results; places of others are left empty."""
    return tuple(
        (tuple(part.shape), part.dtype) if isinstance(part, torch.Tensor) else ((), torch.int64) for part in parts
    )


def _is_floating(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()
