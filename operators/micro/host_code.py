"""What `run` would launch for a case, read off its text: sizes, grids and branches, without running anything.

A tiny evaluator of host expressions over shapes. Whatever it does not know is None, and a branch it cannot decide is
followed both ways: an answer is a hint for what is worth offering, never a proof of correctness.

From the sizes also follows what a fusion saves by removing a buffer.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evo_kernel.types import CaseCard, CaseKind, Evaluation, Source, Strategy, TaskCard
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule, SourceError
from operators.micro.syntax import called

Value = object  # int, float, bool, str, tuple, HostTensor, or None for unknown


@dataclass(frozen=True)
class HostTensor:
    dtype: str
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class HostLaunch:
    """One launch of one case: parameter → value (None: unknown)."""

    launch: SourceLaunch
    case: CaseCard
    grid: tuple[Value, ...]
    values: dict[str, Value] = field(default_factory=dict)


def launches_for(module: KernelModule, task: TaskCard, kernel: SourceKernel | None = None) -> list[HostLaunch]:
    """Every launch (of one kernel, if given) of every case that the card shows, in order."""
    found: list[HostLaunch] = []
    for case in task.cases:
        _Host(module, case, found).block(module.run.body)
    return [one for one in found if kernel is None or one.launch.kernel == kernel.name]


def live_kernels(module: KernelModule, task: TaskCard) -> list[SourceKernel]:
    """The kernels that some case launches, as far as can be told: rewriting another one changes no plan."""
    seen = {one.launch.kernel for one in launches_for(module, task)}
    return [k for k in module.kernels.values() if module.launches_of(k.name) and (k.name in seen or not seen)]


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class _Host:
    def __init__(self, module: KernelModule, case: CaseCard, found: list[HostLaunch]) -> None:
        self.case, self.found = case, found
        self.launches = {id(launch.statement): launch for launch in module.launches}
        self.values: dict[str, Value] = dict(module.constants)
        names = [a.arg for a in module.run.args.args]
        if len(names) == len(case.inputs):
            self.values |= {n: HostTensor(*card) for n, card in zip(names, case.inputs, strict=True)}

    def block(self, body: list[ast.stmt]) -> bool:
        """Whether the suite certainly returned."""
        return any(self.statement(statement) for statement in body)

    def statement(self, statement: ast.stmt) -> bool:
        launch = self.launches.get(id(statement))
        if launch is not None:
            grid = tuple(self.value(e) for e in launch.grid)
            bound = {name: self.value(e) for name, e in launch.arguments.items()}
            self.found.append(HostLaunch(launch, self.case, grid, bound))
        elif isinstance(statement, ast.Assign):
            self.assign(statement.targets[0], self.value(statement.value))
        elif isinstance(statement, ast.If):
            test = self.value(statement.test)
            if test is not None:
                return self.block(statement.body if test else statement.orelse)
            return all([self.block(statement.body), self.block(statement.orelse)])
        return isinstance(statement, ast.Return)

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Tuple):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else [None] * len(target.elts)
            for name, part in zip(target.elts, parts, strict=True):
                self.assign(name, part)

    def value(self, node: ast.expr) -> Value:
        try:
            return self._value(node)
        except (TypeError, ValueError, ZeroDivisionError, IndexError, KeyError, OverflowError):
            return None  # an unknown operand, or a case that the code was not written for

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.values.get(node.id)
            case ast.Tuple() | ast.List():
                return tuple(self.value(e) for e in node.elts)
            case ast.BinOp() if type(node.op) in _BINARY:
                return _BINARY[type(node.op)](self.value(node.left), self.value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return operator.neg(self.value(node.operand))  # type: ignore[arg-type]
            case ast.Compare() if len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
                return _COMPARE[type(node.ops[0])](self.value(node.left), self.value(node.comparators[0]))
            case ast.BoolOp():
                parts = [self.value(v) for v in node.values]
                if None in parts:
                    return None
                return all(parts) if isinstance(node.op, ast.And) else any(parts)
            case ast.Attribute():
                owner = self.value(node.value)
                if isinstance(owner, HostTensor):
                    return {"shape": owner.shape, "dtype": owner.dtype, "ndim": len(owner.shape)}.get(node.attr)
                is_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
                return node.attr if is_torch else None
            case ast.Subscript():
                return self.value(node.value)[self.value(node.slice)]  # type: ignore[index]
            case ast.Call():
                return self._call(node)
        return None

    def _call(self, node: ast.Call) -> Value:
        name = called(node)
        arguments = [self.value(a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords}
        simple = {"triton.cdiv": lambda a, b: -(-a // b), "min": min, "max": max, "int": int, "len": len}
        simple["triton.next_power_of_2"] = lambda a: 1 << (a - 1).bit_length()
        if name in simple:
            return simple[name](*arguments)
        if name in ("torch.empty_like", "torch.zeros_like"):
            like = arguments[0]
            dtype = str(keywords.get("dtype") or getattr(like, "dtype", ""))
            return replace(like, dtype=dtype) if isinstance(like, HostTensor) else None
        if name in ("torch.empty", "torch.zeros"):
            shape = arguments[0] if isinstance(arguments[0], tuple) else tuple(arguments)
            return HostTensor(str(keywords.get("dtype") or "float32"), shape, _strides(shape))  # type: ignore[arg-type]
        if isinstance(node.func, ast.Attribute):
            return self._method(self.value(node.func.value), node.func.attr, arguments)
        return None

    @staticmethod
    def _method(owner: Value, name: str, arguments: list[Value]) -> Value:
        if not isinstance(owner, HostTensor):
            return None
        if name in ("stride", "size", "dim", "numel"):
            if name == "dim":
                return len(owner.shape)
            if name == "numel":
                return math.prod(owner.shape)  # type: ignore[arg-type]
            values = owner.strides if name == "stride" else owner.shape
            return values[arguments[0]] if arguments else values  # type: ignore[index]
        if name in ("contiguous", "detach"):
            return owner
        if name in ("view", "reshape"):
            shape = arguments[0] if arguments and isinstance(arguments[0], tuple) else tuple(arguments)
            return HostTensor(owner.dtype, shape, _strides(shape)) if -1 not in shape else None  # type: ignore[arg-type]
        return None


def _strides(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    strides: list[int | None] = []
    step: int | None = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size if step is not None and size is not None else None
    return tuple(reversed(strides))


BYTES_PER_US = 4.2e6
"""Memory bandwidth of an H200 (measured copy). Other GPUs differ; the ranking of fusions hardly does."""
LAUNCH_US = 2.0
MOST = 0.8
"""A fusion is not expected to save a larger share of the time than this."""


def fusion_gains(
    source: Source, task: TaskCard, parent: Evaluation | None, offered: Iterable[Strategy]
) -> dict[str, float]:
    """Natural log of the expected gain by key, of each offered fusion whose buffer has a known size on a timed case.

    With t the parent's time on a case and b the buffer's bytes: log(t / (t - 2 b / bandwidth - launch)), averaged over
    the search cases.
    """
    wanted = {s.key: str(dict(s.parameters)["buffer"]) for s in offered if "buffer" in dict(s.parameters)}
    times = {m.case: m.median_us for m in parent.measurements} if parent is not None else {}
    if not wanted or not times:
        return {}
    try:
        module = KernelModule.parse(source.text)
        found: dict[tuple[str, str], int] = {}
        for one in launches_for(module, task):
            if one.case.kind is not CaseKind.SEARCH:
                continue
            for parameter, argument in one.launch.arguments.items():
                tensor, root = one.values.get(parameter), module.root_of(argument)
                if root in module.buffers and isinstance(tensor, HostTensor) and None not in tensor.shape:
                    kind = tensor.dtype.removeprefix("torch.").replace("bfloat16", "float16")
                    item = 1 if kind.startswith("float8") else np.dtype(kind).itemsize
                    size = math.prod(size for size in tensor.shape if size is not None) * item
                    found[one.case.name, str(root)] = max(size, found.get((one.case.name, str(root)), 0))
        sizes = found
    except SourceError:
        return {}
    gains: dict[str, float] = {}
    for key, buffer in wanted.items():
        shares = [
            min(MOST, (2 * sizes[case, buffer] / BYTES_PER_US + LAUNCH_US) / us)
            for case, us in times.items()
            if (case, buffer) in sizes
        ]
        if shares:
            gains[key] = -sum(math.log1p(-share) for share in shares) / len(shares)
    return gains
