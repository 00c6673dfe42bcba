"""What a parsed source consists of, and how it is found: kernels with their accesses and loops, functions of the host
with their launches and buffers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from evo_kernel.syntax import walk
from operators.micro.syntax import (
    argument,
    called,
    fresh_name,
    int_value,
    names_read,
    names_written,
    own_part,
    self_root,
    spell,
    statements,
)

LOADS = ("tl.load",)
STORES = ("tl.store",)
ATOMICS = ("tl.atomic_add", "tl.atomic_max", "tl.atomic_min", "tl.atomic_xchg", "tl.atomic_cas")
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_SAME_POINTER = ("tl.multiple_of", "tl.max_contiguous", "tl.broadcast_to")
VIEWS = ("view", "reshape", "flatten", "contiguous", "unsqueeze", "squeeze", "t", "transpose", "permute", "expand")
ALLOCATIONS = ("empty", "empty_like", "zeros", "zeros_like", "ones", "full", "full_like", "empty_strided", "new_empty")


@dataclass(frozen=True)
class SourceParameter:
    name: str
    kind: str  # "pointer" | "scalar" | "constexpr"


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic of a kernel."""

    kind: str  # "load" | "store" | "atomic"
    call: ast.Call
    statement: ast.stmt  # the smallest statement that holds it
    loops: tuple[ast.For | ast.While, ...]  # enclosing loops, outermost first
    pointer: ast.expr
    base: str | None  # the pointer parameter that the address starts from; None when it is not plain
    mask: ast.expr | None
    other: ast.expr | None
    value: ast.expr | None  # what is stored


@dataclass(frozen=True, eq=False)
class Loop:
    """A `for name in range(start, stop, step)` of a kernel (`tl.range` and `tl.static_range` too)."""

    node: ast.For
    target: str
    start: ast.expr
    stop: ast.expr
    step: ast.expr
    outer: tuple[ast.For | ast.While, ...]
    function: str  # "range" | "tl.range" | "tl.static_range"


@dataclass(frozen=True, eq=False)
class SourceKernel:
    """A top-level `@triton.jit` function that the host launches (or a device function that kernels call)."""

    node: ast.FunctionDef
    parameters: tuple[SourceParameter, ...]
    accesses: tuple[Access, ...]
    loops: tuple[Loop, ...]

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def body(self) -> list[ast.stmt]:
        """Top-level statements, without the docstring."""
        first = self.node.body[0]
        has_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        return self.node.body[1:] if has_doc else self.node.body

    @property
    def pointers(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters if p.kind == "pointer")

    @property
    def constexprs(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters if p.kind == "constexpr")

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that the kernel mentions: what a fresh name must avoid."""
        own = {part.id for part in walk(self.node) if isinstance(part, ast.Name)}
        return frozenset(own | {p.name for p in self.parameters})

    @cached_property
    def definitions(self) -> Mapping[str, tuple[ast.stmt, ...]]:
        """Name → the statements that assign it (loops define their targets), in text order."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in statements(self.node.body):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
                written = names_written(statement)
            elif isinstance(statement, ast.For):
                written = names_written(statement.target)
            else:
                written = set()
            for name in written:
                found.setdefault(name, []).append(statement)
        return {name: tuple(places) for name, places in found.items()}

    def value_of(self, name: str) -> ast.expr | None:
        """The expression of a name assigned exactly once, by a plain `name = expression`; else None."""
        places = self.definitions.get(name, ())
        if len(places) == 1 and isinstance(places[0], ast.Assign) and isinstance(places[0].targets[0], ast.Name):
            return places[0].value
        return None

    def fresh(self, wish: str, *also: str) -> str:
        """`wish`, or `wish_2`, `wish_3` ...: a name that the kernel (and `also`) does not use."""
        return fresh_name(wish, self.names | set(also))

    @cached_property
    def _calls(self) -> tuple[tuple[str, ast.Call], ...]:
        return tuple((called(part), part) for part in walk(self.node) if isinstance(part, ast.Call))

    def calls(self, *functions: str) -> list[ast.Call]:
        """Calls of the named functions (`tl.dot`)."""
        return [call for name, call in self._calls if name in functions]


@dataclass(frozen=True, eq=False)
class SourceLaunch:
    """One `kernel[grid](...)` of the host."""

    kernel: str
    call: ast.Call
    statement: ast.stmt
    block: list[ast.stmt] = field(repr=False)  # the suite that holds the statement
    guards: tuple[ast.If, ...]  # enclosing ifs, outermost first
    grid: tuple[ast.expr, ...]  # empty when the grid is no tuple (a lambda, a name)
    arguments: Mapping[str, ast.expr]  # kernel parameter → host expression
    options: Mapping[str, ast.expr]  # num_warps, num_stages, ...


@dataclass(frozen=True, eq=False)
class SourceBuffer:
    """A tensor that a function of the host allocates."""

    name: str
    statement: ast.Assign
    call: ast.Call
    returned: bool


@dataclass(frozen=True, eq=False)
class HostFunction:
    """A function or method that runs on the host: `run`, or what it may call."""

    node: ast.FunctionDef
    kind: ast.ClassDef | None = None  # the class that it is a method of

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return tuple(a.arg for a in self.node.args.args)

    @cached_property
    def buffers(self) -> Mapping[str, SourceBuffer]:
        """Tensors that it allocates, by name."""
        returned = {name for s in statements(self.node.body) if isinstance(s, ast.Return) for name in names_read(s)}
        found = {}
        for statement in statements(self.node.body):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value = statement.value
                if isinstance(value, ast.Call) and called(value).split(".")[-1] in ALLOCATIONS:
                    name = statement.targets[0].id
                    found[name] = SourceBuffer(name, statement, value, name in returned)
        return found

    @cached_property
    def assigned(self) -> Mapping[str, list[ast.stmt]]:
        """What gives each name its value, in text order: assignments, loops, `with` and functions."""
        found = defaultdict[str, list[ast.stmt]](list)
        for statement in statements(self.node.body):
            match statement:
                case ast.FunctionDef(name=name):
                    names = {name}
                case ast.For(target=target):
                    names = names_written(target)
                case ast.With(items=items):
                    names = names_written(*[item.optional_vars for item in items if item.optional_vars is not None])
                case _:
                    names = names_written(own_part(statement))
            for name in names:
                found[name].append(statement)
        return found

    @cached_property
    def aliases(self) -> Mapping[str, ast.expr]:
        """Names that are made from another tensor by methods or slices, and how."""
        found: dict[str, ast.expr] = {}
        for statement in statements(self.node.body):
            if not isinstance(statement, ast.Assign):
                continue
            value, root = statement.value, self_root(statement.value)
            last = called(value).split(".")[-1]
            if root in (None, "torch", "triton", "tl") or isinstance(value, ast.Attribute) or last in ALLOCATIONS:
                continue
            seen = set[str | None]()
            while root in found and root not in seen:
                seen.add(root)
                root = self_root(found[root])
            for name in names_written(*statement.targets) - {root}:
                found[name] = value
        return found

    def holds(self, node: ast.AST) -> bool:
        """Whether a node of the text stands in it."""
        line = getattr(node, "lineno", 0)
        return self.node.lineno <= line <= (self.node.end_lineno or self.node.lineno)


def functions_of(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a module, also those that an `if` or `try` defines."""
    return [s for s in _module_level(tree.body) if isinstance(s, ast.FunctionDef)]


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            for suite in (statement.body, statement.orelse):
                yield from _module_level(suite)


def hosts_of(tree: ast.Module) -> tuple[HostFunction, ...]:
    """The functions and methods that run on the host, in text order."""
    found = list[HostFunction]()
    for statement in _module_level(tree.body):
        if isinstance(statement, ast.FunctionDef) and not is_jit(statement):
            found.append(HostFunction(statement))
        elif isinstance(statement, ast.ClassDef):
            found += [HostFunction(node, statement) for node in statement.body if isinstance(node, ast.FunctionDef)]
    return tuple(found)


def is_jit(node: ast.FunctionDef) -> bool:
    return any(spell(decorator).split("(")[0] in ("triton.jit", "jit") for decorator in node.decorator_list)


def constants_of(tree: ast.Module) -> dict[str, int]:
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, int_value(statement.value)
            if name.isupper() and value is not None:
                found[name] = value
    return found


def kernels_of(tree: ast.Module) -> dict[str, SourceKernel]:
    return {node.name: kernel_of(node) for node in functions_of(tree) if is_jit(node)}


def kernel_of(node: ast.FunctionDef) -> SourceKernel:
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    found: list[Access] = []
    loops: list[Loop] = []
    _scan(_Pointers(node, {a.arg for a in arguments}), node.body, (), found, loops)
    bases = {access.base for access in found}
    parameters = tuple(SourceParameter(a.arg, "pointer" if a.arg in bases else _kind(a)) for a in arguments)
    return SourceKernel(node, parameters, tuple(found), tuple(loops))


def _kind(argument_node: ast.arg) -> str:
    if argument_node.annotation is not None and "constexpr" in spell(argument_node.annotation):
        return "constexpr"
    return "pointer" if argument_node.arg.endswith("_ptr") else "scalar"


def _scan(
    pointers: _Pointers,
    body: list[ast.stmt],
    outer: tuple[ast.For | ast.While, ...],
    accesses: list[Access],
    loops: list[Loop],
) -> None:
    """Collect accesses and loops, in text order."""
    for statement in body:
        if isinstance(statement, ast.For | ast.While | ast.If):
            inner = outer if isinstance(statement, ast.If) else (*outer, statement)
            if isinstance(statement, ast.For) and (loop := _loop(statement, outer)) is not None:
                loops.append(loop)
            _scan(pointers, statement.body, inner, accesses, loops)
            _scan(pointers, statement.orelse, inner, accesses, loops)
            continue
        for call in [part for part in walk(statement) if isinstance(part, ast.Call)]:
            if (access := _access(pointers, call, statement, outer)) is not None:
                accesses.append(access)


def _loop(node: ast.For, outer: tuple[ast.For | ast.While, ...]) -> Loop | None:
    function = called(node.iter)
    if function not in ("range", "tl.range", "tl.static_range") or not isinstance(node.target, ast.Name):
        return None
    assert isinstance(node.iter, ast.Call)
    bounds = node.iter.args
    start, stop, *rest = [ast.Constant(0), *bounds] if len(bounds) == 1 else bounds
    step = rest[0] if rest else ast.Constant(1)
    return Loop(node, node.target.id, start, stop, step, outer, function)


def _access(
    pointers: _Pointers, call: ast.Call, statement: ast.stmt, loops: tuple[ast.For | ast.While, ...]
) -> Access | None:
    name = called(call)
    kind = "load" if name in LOADS else "store" if name in STORES else "atomic" if name in ATOMICS else None
    if kind is None or not call.args:
        return None
    pointer = call.args[0]
    mask = argument(call, "mask", {"load": 1, "store": 2}.get(kind))
    other = argument(call, "other", 2) if kind == "load" else None
    value = None if kind == "load" else argument(call, "value", 1)
    return Access(kind, call, statement, loops, pointer, pointers.base(pointer), mask, other, value)


class _Pointers:
    """Which parameter of a function a pointer comes from."""

    def __init__(self, function: ast.FunctionDef, parameters: set[str]) -> None:
        self._function, self._parameters = function, parameters

    @cached_property
    def _given(self) -> Mapping[str, Sequence[ast.expr]]:
        """What is assigned to a name, without what advances it."""
        given: dict[str, list[ast.expr]] = {}
        for part in walk(self._function):
            if isinstance(part, ast.Assign):
                for name in {t.id for t in part.targets if isinstance(t, ast.Name)} - names_read(part.value):
                    given.setdefault(name, []).append(part.value)
        return given

    def base(self, pointer: ast.expr, depth: int = 0) -> str | None:
        """The parameter at the left end of a sum, through names (which may be advanced in loops by `p += step`)."""
        while isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add | ast.Sub):
            pointer = pointer.left
        if isinstance(pointer, ast.Call) and called(pointer) in _SAME_POINTER:
            return self.base(pointer.args[0], depth + 1)
        if not isinstance(pointer, ast.Name) or depth > 20:
            return None
        if pointer.id in self._parameters:
            return pointer.id
        found = {self.base(value, depth + 1) for value in self._given.get(pointer.id, ())}
        return found.pop() if len(found) == 1 else None


def launches_of(host: HostFunction, kernels: Mapping[str, SourceKernel]) -> Iterator[SourceLaunch]:
    """The launches that stand in a function of the host, in text order."""

    def visit(block: list[ast.stmt], guards: tuple[ast.If, ...]) -> Iterator[SourceLaunch]:
        for statement in block:
            inner = (*guards, statement) if isinstance(statement, ast.If) else guards
            for name in ("body", "orelse"):
                yield from visit(getattr(statement, name, []), inner)
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                kernel = kernels.get(self_root(call.func.value) or "")
                if kernel is not None:
                    yield _launch(kernel, call, statement, block, guards)

    yield from visit(host.node.body, ())


def _launch(
    kernel: SourceKernel, call: ast.Call, statement: ast.stmt, block: list[ast.stmt], guards: tuple[ast.If, ...]
) -> SourceLaunch:
    assert isinstance(call.func, ast.Subscript)
    grid = call.func.slice
    names = [p.name for p in kernel.parameters]
    plain = takewhile(lambda value: not isinstance(value, ast.Starred), call.args)
    bound = dict(zip(names, plain, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg in names}
    options = {k.arg: k.value for k in call.keywords if k.arg in OPTIONS and k.arg not in names}
    return SourceLaunch(
        kernel.name,
        call,
        statement,
        block,
        guards,
        tuple(grid.elts) if isinstance(grid, ast.Tuple) else (),
        bound,  # type: ignore[arg-type]
        options,  # type: ignore[arg-type]
    )
