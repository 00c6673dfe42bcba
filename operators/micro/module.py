"""A Triton source as a structure: constants, kernels, loops, memory accesses, launches and buffers, with exact edits.

The text is kept as it is. Analysis reads its syntax tree; an edit replaces a span of the text, so that whatever no edit
names (comments, blank lines, spelling) comes back byte for byte: `KernelModule.parse(text).text == text`.
Everything here is syntax and data flow; nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from operators.micro.edits import Edit, TextMap, splice

Node = TypeVar("Node", bound=ast.AST)

LOADS = ("tl.load",)
STORES = ("tl.store",)
ATOMICS = ("tl.atomic_add", "tl.atomic_max", "tl.atomic_min", "tl.atomic_xchg", "tl.atomic_cas")
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
VIEWS = ("view", "reshape", "flatten", "contiguous", "unsqueeze", "squeeze", "t", "transpose", "permute", "expand")
ALLOCATIONS = ("empty", "empty_like", "zeros", "zeros_like", "ones", "full", "full_like", "empty_strided", "new_empty")


class SourceError(ValueError):
    """The text is no kernel module: says what is missing and where."""


def spell(node: ast.AST) -> str:
    """The expression or statement in canonical spelling: equal spelling means equal syntax."""
    return ast.unparse(node)


def called(node: ast.AST) -> str:
    """Dotted name of what a call calls (`tl.load`), or "" when `node` is no plain call."""
    return spell(node.func) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) else ""


def names_read(*nodes: ast.AST) -> set[str]:
    """Names whose value the nodes use (an augmented assignment reads its target)."""
    found = set()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                found.add(part.id)
            elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
                found.add(part.target.id)
    return found


def names_written(*nodes: ast.AST) -> set[str]:
    """Names that the nodes assign, loop targets included."""
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument by keyword or position; None when it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def int_value(node: ast.AST | None) -> int | None:
    """The value of an integer literal, else None."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


class _Replace(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.names[node.id] if isinstance(node.ctx, ast.Load) and node.id in self.names else node


def copy_of(node: Node) -> Node:
    """A deep copy of a syntax tree (faster than copy.deepcopy, which follows every attribute)."""
    fields = {
        name: [copy_of(item) if isinstance(item, ast.AST) else item for item in value]
        if isinstance(value, list)
        else (copy_of(value) if isinstance(value, ast.AST) else value)
        for name, value in ast.iter_fields(node)
    }
    return ast.copy_location(type(node)(**fields), node)


def substitute(node: Node, names: Mapping[str, ast.expr | str]) -> Node:
    """A copy of `node` with reads of names replaced by expressions (given as trees or text)."""
    trees = {name: expression(value) if isinstance(value, str) else value for name, value in names.items()}
    return _Replace(trees).visit(copy_of(node))


def expression(text: str) -> ast.expr:
    """The syntax tree of one expression."""
    return ast.parse(text, mode="eval").body


@dataclass(frozen=True)
class Parameter:
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
class Kernel:
    """A top-level `@triton.jit` function that `run` launches (or a device function that kernels call)."""

    node: ast.FunctionDef
    parameters: tuple[Parameter, ...]
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
        own = {part.id for part in ast.walk(self.node) if isinstance(part, ast.Name)}
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

    def calls(self, *functions: str) -> list[ast.Call]:
        return [part for part in ast.walk(self.node) if isinstance(part, ast.Call) and called(part) in functions]


@dataclass(frozen=True, eq=False)
class Launch:
    """One `kernel[grid](...)` in `run`."""

    kernel: str
    call: ast.Call
    statement: ast.stmt
    block: list[ast.stmt] = field(repr=False)  # the suite that holds the statement
    guards: tuple[ast.If, ...]  # enclosing ifs, outermost first
    grid: tuple[ast.expr, ...]  # empty when the grid is no tuple (a lambda, a name)
    arguments: Mapping[str, ast.expr]  # kernel parameter → host expression
    options: Mapping[str, ast.expr]  # num_warps, num_stages, ...


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor that `run` allocates."""

    name: str
    statement: ast.Assign
    call: ast.Call
    returned: bool


@dataclass(frozen=True, eq=False)
class KernelModule:
    """A parsed source. Make one with `parse`; make changed texts with `edited`."""

    text: str
    tree: ast.Module
    constants: Mapping[str, int]  # module-level UPPERCASE integers: knobs
    kernels: Mapping[str, Kernel]
    run: ast.FunctionDef
    launches: tuple[Launch, ...]
    buffers: Mapping[str, Buffer]

    @staticmethod
    def parse(text: str) -> KernelModule:
        """Raises SourceError when the text does not parse or has no `run`."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise SourceError(f"the source does not parse: {error}; mend its syntax first") from error
        run = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"), None)
        if run is None:
            raise SourceError("the source has no top-level `def run(...)`; add one that launches the kernels")
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and _is_jit(n)]
        kernels = {node.name: _kernel(node) for node in functions}
        return KernelModule(text, tree, _constants(tree), kernels, run, tuple(_launches(run, kernels)), _buffers(run))

    # -- reading ---------------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name at module level or in `run`: what a fresh constant or kernel must avoid."""
        parts = [part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)]
        return frozenset(parts) | set(self.kernels) | {a.arg for a in self.run.args.args}

    def fresh(self, wish: str) -> str:
        return fresh_name(wish, self.names)

    def source_of(self, node: ast.stmt | ast.expr) -> str:
        """The text of a node as it is written."""
        return self._map.text_of(node)

    def launches_of(self, kernel: str) -> tuple[Launch, ...]:
        return tuple(launch for launch in self.launches if launch.kernel == kernel)

    def root_of(self, node: ast.expr) -> str | None:
        """The tensor (buffer or input of `run`) whose storage an argument is: looks through views and aliases."""
        if isinstance(node, ast.Name):
            alias = self._aliases.get(node.id)
            return self.root_of(alias) if alias is not None else node.id
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
            return self.root_of(node.func.value)
        if isinstance(node, ast.Attribute | ast.Subscript):
            return self.root_of(node.value)
        return None

    def tensors(self, launch: Launch, kind: str) -> dict[str, str]:
        """Pointer parameter → tensor root, for parameters that the launch's kernel reads ("load") or writes
        ("store", atomics included). Roots that cannot be told come as "?"."""
        kernel = self.kernels[launch.kernel]
        kinds = ("load", "atomic") if kind == "load" else ("store", "atomic")
        bases = {a.base for a in kernel.accesses if a.kind in kinds}
        unknown = None in bases or _has_escapes(kernel)
        return {
            name: self.root_of(launch.arguments[name]) or "?"
            for name in kernel.pointers
            if name in launch.arguments and (unknown or name in bases)
        }

    @cached_property
    def _aliases(self) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for statement in statements(self.run.body):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value, name = statement.value, statement.targets[0].id
                is_view = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
                if isinstance(value, ast.Name) or (is_view and value.func.attr in VIEWS):  # type: ignore[union-attr]
                    if self_root(value) != name:
                        found[name] = value
        return found

    # -- editing ---------------------------------------------------------------------------------------------------

    @cached_property
    def _map(self) -> TextMap:
        return TextMap(self.text)

    def edited(self, *edits: Edit | Iterable[Edit]) -> str:
        """The text with the edits made (they must not overlap)."""
        flat = [e for item in edits for e in ([item] if isinstance(item, Edit) else item)]
        return splice(self.text, flat)

    def replace(self, node: ast.stmt | ast.expr, text: str) -> Edit:
        """A node's text by another (a statement's lines are given without indentation; they get the node's)."""
        return self._map.replace(node, text)

    def replace_range(self, first: ast.stmt, last: ast.stmt, text: str) -> Edit:
        """Statements `first` to `last` of one suite by other statements; empty text deletes them."""
        return self._map.replace_range(first, last, text)

    def insert_before(self, statement: ast.stmt, text: str) -> Edit:
        return self._map.insert_before(statement, text)

    def insert_after(self, statement: ast.stmt, text: str) -> Edit:
        return self._map.insert_after(statement, text)

    def delete(self, statement: ast.stmt) -> Edit:
        """Only where its suite keeps another statement."""
        return self._map.replace_range(statement, statement, "")

    def set_keyword(self, call: ast.Call, name: str, text: str) -> Edit:
        """Add or replace a keyword argument of a call. Several new ones on one call: use `add_arguments`."""
        given = next((k.value for k in call.keywords if k.arg == name), None)
        return self.replace(given, text) if given is not None else self.add_arguments(call, f"{name}={text}")

    def add_arguments(self, call: ast.Call, text: str) -> Edit:
        """Append `a=1, b=2` to a call's arguments."""
        return self._map.append_in_call(call, text)

    def drop_keyword(self, call: ast.Call, name: str) -> Edit:
        """The call without one keyword argument, in canonical spelling."""
        kept = [k for k in call.keywords if k.arg != name]
        return self.replace(call, spell(ast.Call(call.func, call.args, kept)))

    def add_parameters(self, kernel: Kernel, text: str) -> Edit:
        """Append `name, NAME: tl.constexpr` to a kernel's parameters."""
        return self._map.append_parameters(kernel.node, text)

    def set_constant(self, name: str, value: int) -> Edit:
        """Add a knob (after the last one, or before the first function) or change its value."""
        assigned = [s for s in self.tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
        knobs = [s for s in assigned if s.targets[0].id in self.constants]  # type: ignore[union-attr]
        same = next((s for s in knobs if s.targets[0].id == name), None)  # type: ignore[union-attr]
        if same is not None:
            return self.replace(same.value, str(value))
        if knobs:
            return self.insert_after(knobs[-1], f"{name} = {value}")
        function = next(s for s in self.tree.body if isinstance(s, ast.FunctionDef))
        return self._map.insert_before_function(function, f"{name} = {value}\n\n")

    def add_kernel(self, text: str) -> Edit:
        """A new `@triton.jit` function (decorator included), placed before `run`."""
        return self._map.insert_before_function(self.run, text.strip("\n") + "\n\n")

    def delete_function(self, node: ast.FunctionDef) -> Edit:
        return self._map.delete_function(node)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a suite and of the suites in it, in text order."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, ()))


def fresh_name(wish: str, taken: Iterable[str]) -> str:
    """`wish`, or `wish_2`, `wish_3` ... when it is taken (`x_2_ptr` for `x_ptr`, so that it stays a pointer's name)."""
    used = set(taken)
    if wish not in used:
        return wish
    tail = "_ptr" if wish.endswith("_ptr") else ""
    stem, number = re.sub(r"_\d+$", "", wish.removesuffix(tail)), 2
    while (name := f"{stem}_{number}{tail}") in used:
        number += 1
    return name


def self_root(node: ast.expr) -> str | None:
    """The first name of a chain like `x.view(-1)` or `x`."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_jit(node: ast.FunctionDef) -> bool:
    return any(spell(decorator).split("(")[0] in ("triton.jit", "jit") for decorator in node.decorator_list)


def _has_escapes(kernel: Kernel) -> bool:
    """Whether the kernel passes pointers to something this file does not read (a device function, a descriptor)."""
    return bool(kernel.calls("tl.make_block_ptr")) or any(a.base is None for a in kernel.accesses)


def _constants(tree: ast.Module) -> dict[str, int]:
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, int_value(statement.value)
            if name.isupper() and value is not None:
                found[name] = value
    return found


def _kernel(node: ast.FunctionDef) -> Kernel:
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    found: list[Access] = []
    loops: list[Loop] = []
    _scan(node, node.body, (), found, loops, {a.arg for a in arguments})
    bases = {access.base for access in found}
    parameters = tuple(Parameter(a.arg, "pointer" if a.arg in bases else _kind(a)) for a in arguments)
    return Kernel(node, parameters, tuple(found), tuple(loops))


def _kind(argument_node: ast.arg) -> str:
    if argument_node.annotation is not None and "constexpr" in spell(argument_node.annotation):
        return "constexpr"
    return "pointer" if argument_node.arg.endswith("_ptr") else "scalar"


def _scan(
    function: ast.FunctionDef,
    body: list[ast.stmt],
    outer: tuple[ast.For | ast.While, ...],
    accesses: list[Access],
    loops: list[Loop],
    parameters: set[str],
) -> None:
    """Collect accesses and loops, in text order."""
    for statement in body:
        if isinstance(statement, ast.For | ast.While | ast.If):
            inner = outer if isinstance(statement, ast.If) else (*outer, statement)
            if isinstance(statement, ast.For) and (loop := _loop(statement, outer)) is not None:
                loops.append(loop)
            _scan(function, statement.body, inner, accesses, loops, parameters)
            _scan(function, statement.orelse, inner, accesses, loops, parameters)
        else:
            calls = [part for part in ast.walk(statement) if isinstance(part, ast.Call)]
            for call in calls:
                if (access := _access(function, call, statement, outer, parameters)) is not None:
                    accesses.append(access)


def _loop(node: ast.For, outer: tuple[ast.For | ast.While, ...]) -> Loop | None:
    function = called(node.iter)
    if function not in ("range", "tl.range", "tl.static_range") or not isinstance(node.target, ast.Name):
        return None
    assert isinstance(node.iter, ast.Call)
    bounds = node.iter.args
    zero, one = ast.Constant(0), ast.Constant(1)
    start, stop = (zero, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
    step = bounds[2] if len(bounds) > 2 else one
    return Loop(node, node.target.id, start, stop, step, outer, function)


def _access(
    function: ast.FunctionDef,
    call: ast.Call,
    statement: ast.stmt,
    loops: tuple[ast.For | ast.While, ...],
    parameters: set[str],
) -> Access | None:
    name = called(call)
    kind = "load" if name in LOADS else "store" if name in STORES else "atomic" if name in ATOMICS else None
    if kind is None or not call.args:
        return None
    pointer = call.args[0]
    mask = argument(call, "mask", {"load": 1, "store": 2}.get(kind))
    other = argument(call, "other", 2) if kind == "load" else None
    value = None if kind == "load" else argument(call, "value", 1)
    base = _base(function, pointer, parameters, 0)
    return Access(kind, call, statement, loops, pointer, base, mask, other, value)


def _base(function: ast.FunctionDef, pointer: ast.expr, parameters: set[str], depth: int) -> str | None:
    """The parameter at the left end of a sum, through names (which may be advanced in loops by `p += step`)."""
    while isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add | ast.Sub):
        pointer = pointer.left
    if isinstance(pointer, ast.Call) and called(pointer) in ("tl.multiple_of", "tl.max_contiguous", "tl.broadcast_to"):
        return _base(function, pointer.args[0], parameters, depth + 1)
    if not isinstance(pointer, ast.Name) or depth > 20:
        return None
    if pointer.id in parameters:
        return pointer.id
    found = set()
    for part in ast.walk(function):
        if isinstance(part, ast.Assign) and any(isinstance(t, ast.Name) and t.id == pointer.id for t in part.targets):
            if pointer.id not in names_read(part.value):
                found.add(_base(function, part.value, parameters, depth + 1))
    return found.pop() if len(found) == 1 else None


def _launches(run: ast.FunctionDef, kernels: Mapping[str, Kernel]) -> Iterator[Launch]:
    def visit(block: list[ast.stmt], guards: tuple[ast.If, ...]) -> Iterator[Launch]:
        for statement in block:
            inner = (*guards, statement) if isinstance(statement, ast.If) else guards
            for name in ("body", "orelse"):
                yield from visit(getattr(statement, name, []), inner)
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                kernel = kernels.get(self_root(call.func.value) or "")
                if kernel is not None:
                    yield _launch(kernel, call, statement, block, guards)

    yield from visit(run.body, ())


def _launch(
    kernel: Kernel, call: ast.Call, statement: ast.stmt, block: list[ast.stmt], guards: tuple[ast.If, ...]
) -> Launch:
    assert isinstance(call.func, ast.Subscript)
    grid = call.func.slice
    names = [p.name for p in kernel.parameters]
    bound = dict(zip(names, call.args, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg in names}
    options = {k.arg: k.value for k in call.keywords if k.arg in OPTIONS and k.arg not in names}
    return Launch(
        kernel.name,
        call,
        statement,
        block,
        guards,
        tuple(grid.elts) if isinstance(grid, ast.Tuple) else (),
        bound,  # type: ignore[arg-type]
        options,  # type: ignore[arg-type]
    )


def _buffers(run: ast.FunctionDef) -> dict[str, Buffer]:
    returned = {name for s in statements(run.body) if isinstance(s, ast.Return) for name in names_read(s)}
    found = {}
    for statement in statements(run.body):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            value = statement.value
            if isinstance(value, ast.Call) and called(value).split(".")[-1] in ALLOCATIONS:
                name = statement.targets[0].id
                found[name] = Buffer(name, statement, value, name in returned)
    return found
