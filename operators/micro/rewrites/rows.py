"""What the row rewrites share: passes over a row, and straight-line code with its repetitions removed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression
from operators.micro.kernels import Loop, SourceKernel
from operators.micro.rewrites.indices import bound_of
from operators.micro.syntax import (
    Node,
    argument,
    assignment,
    called,
    fresh_name,
    mapped,
    mapped_call,
    names_read,
    names_written,
    spell,
    substitute,
)

SHAPES = ("tl.arange", "tl.zeros", "tl.full", "range", "tl.range")
HINTS = ("eviction_policy", "cache_modifier")
"""Options of a load that do not change its value."""


@dataclass(frozen=True, eq=False)
class Passes:
    """The top-level loops of a row kernel: all run over the same `range(0, stop, BLOCK)`."""

    kernel: SourceKernel
    loops: tuple[Loop, ...]
    stop: str  # a parameter: how long the row is
    block: str  # a constexpr parameter: how much of it one step takes


def passes_of(kernel: SourceKernel) -> Passes | None:
    """The passes of a kernel whose loops all are `for name in range(0, stop, BLOCK)` with straight bodies."""
    loops = tuple(loop for loop in kernel.loops if not loop.outer)
    if not loops or len(loops) != len(kernel.loops) or any(isinstance(n, ast.While) for n in ast.walk(kernel.node)):
        return None
    stops, blocks = {spell(loop.stop) for loop in loops}, {spell(loop.step) for loop in loops}
    if len(stops) != 1 or len(blocks) != 1 or any(spell(loop.start) != "0" for loop in loops):
        return None
    stop, block = stops.pop(), blocks.pop()
    known = {p.name for p in kernel.parameters}
    straight = all(is_straight(loop.node.body) for loop in loops)
    top = {id(statement) for statement in kernel.body}
    if not straight or stop not in known or block not in kernel.constexprs or stop in kernel.definitions:
        return None
    return Passes(kernel, loops, stop, block) if all(id(loop.node) in top for loop in loops) else None


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two passes of one kernel with the same range, and the statements between them."""

    kernel: SourceKernel
    first: Loop
    second: Loop
    gap: tuple[ast.stmt, ...]
    after: tuple[ast.stmt, ...]

    @property
    def late(self) -> tuple[ast.stmt, ...]:
        """Statements of the gap that need what the first pass computed."""
        names, found = names_written(*self.first.node.body), []
        for statement in self.gap:
            calls = [p for p in ast.walk(statement) if isinstance(p, ast.Call)]
            if names_read(statement) & names or any(map(has_effect, calls)):
                names |= names_written(statement)
                found.append(statement)
        return tuple(found)

    @property
    def early(self) -> tuple[ast.stmt, ...]:
        late = {id(s) for s in self.late}
        return tuple(s for s in self.gap if id(s) not in late)


@dataclass(frozen=True)
class Merged:
    """What stands in place of two passes and their gap."""

    before: tuple[str, ...]
    body: tuple[ast.stmt, ...]
    after: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...] = ()  # expressions in what follows, by canonical spelling → text


def has_effect(call: ast.Call) -> bool:
    return called(call) in ("tl.store", "tl.debug_barrier") or called(call).startswith("tl.atomic")


def is_straight(body: Sequence[ast.stmt]) -> bool:
    """Only assignments to names and calls."""
    return all(
        (isinstance(s, ast.Assign) and all(isinstance(t, ast.Name | ast.Tuple) for t in s.targets))
        or (isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name))
        or (isinstance(s, ast.Expr))
        for s in body
    )


def only_shapes(kernel: SourceKernel, block: str) -> bool:
    """Whether a constexpr only sizes things (arange, zeros, full, loop steps, the evenness that makes a mask needless):
    then any power of two may be bound."""
    inside = set()
    sized = [*kernel.calls(*SHAPES), *(call.args[1] for call in kernel.calls("tl.broadcast_to") if len(call.args) == 2)]
    checks = [p for s in kernel.body for p in ast.walk(s) if isinstance(p, ast.BinOp) and bound_of(p) is not p]
    for node in (*sized, *(check.right for check in checks)):
        inside |= {id(part) for part in ast.walk(node)}
    uses = [p for s in kernel.body for p in ast.walk(s) if isinstance(p, ast.Name) and p.id == block]
    return all(id(use) in inside for use in uses)


def without_zeros(node: Node) -> Node:
    """A copy with `0 + x` and `x + 0` as `x`, everywhere in a tree."""

    def change(part: ast.AST) -> ast.expr | None:
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Add):
            return None
        left, right = without_zeros(part.left), without_zeros(part.right)
        for zero, other in ((left, right), (right, left)):
            if isinstance(zero, ast.Constant) and zero.value == 0:
                return other
        return ast.BinOp(left, part.op, right)

    return mapped(node, change)


def at_zero(loop: Loop) -> list[ast.stmt]:
    """The loop's body for its first step, where the loop variable is 0."""
    return [without_zeros(substitute(s, {loop.target: ast.Constant(0)})) for s in loop.node.body]


def loads_apart(kernel: SourceKernel, body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Straight code in which a load is the whole right side, or `load.to(dtype)` is."""
    taken, done = set(kernel.names), list[ast.stmt]()

    def lifted(part: ast.AST) -> ast.Name | None:
        if called(part) != "tl.load":
            return None
        assert isinstance(part, ast.Call)
        call = mapped_call(part, lifted)
        name = fresh_name("loaded_1", taken)
        taken.add(name)
        done.append(assignment(name, call))
        return ast.Name(name, ast.Load())

    for statement in body:
        apart = isinstance(statement, ast.Assign) and _load_in(statement.value) is not None
        done.append(statement if apart else mapped(statement, lifted))
    return done


def _load_in(value: ast.expr) -> ast.Call | None:
    """The load when `value` is a load or a conversion of one."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        value = value.func.value
    return value if isinstance(value, ast.Call) and called(value) == "tl.load" else None


class Numbering:
    """Local value numbering over straight code: what was computed (or loaded) already is not computed again.

    A name that takes a value for the second time is not assigned until someone reads it, since it is often overwritten
    (again by something known) before that. A load of what a store has just written becomes the value that was stored,
    rounded to the pointer's type.
    """

    def __init__(self, pointers: Sequence[str] = ()) -> None:
        self.pointers = pointers  # parameters
        self.numbers: dict[str, int] = {}  # name → number of the value it is meant to hold
        self.held: dict[str, int] = {}  # name → number of the value it does hold
        self.known: dict[str, int] = {}  # expression over numbers → number
        self.pending: dict[str, ast.stmt] = {}  # assignments put off
        self.done: list[ast.stmt] = []
        self.count = 0
        self.memory = 0  # raised by every store
        self.stored: tuple[str, str, int, str] | None = None  # by the last store: address, mask, value, parameter

    def run(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        for statement in body:
            self._statement(statement)
        self._flush(set(self.pending))
        return self.done

    def _new(self) -> int:
        self.count += 1
        return self.count

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self.held[name] = self._new()
        return self.numbers[name]

    def _flush(self, names: set[str]) -> None:
        """Make the assignments of these names that were put off."""
        for name in sorted(names & set(self.pending)):
            statement = self.pending.pop(name)
            self._flush(names_read(statement) - {name})
            self._keep(statement, self.numbers[name])

    def _keep(self, statement: ast.stmt, number: int | None = None) -> None:
        written = names_written(statement)
        stale = {n for n, s in self.pending.items() if names_read(s) & written and n not in written}
        self._flush((stale | names_read(statement)) - (written - names_read(statement)))
        for name in written:
            self.pending.pop(name, None)
            self.numbers[name] = self.held[name] = self._new() if number is None else number
        self.done.append(statement)

    def _statement(self, statement: ast.stmt) -> None:
        effects = [part for part in ast.walk(statement) if isinstance(part, ast.Call) and has_effect(part)]
        if effects or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            if effects or isinstance(statement, ast.Expr):
                self._flush({n for n, s in self.pending.items() if "tl.load" in spell(s)})
                self.memory += 1
            self._keep(statement)
            self._remember(effects)
            return
        target, value = statement.targets[0].id, self._forwarded(statement.value)
        if value is not statement.value:
            statement = assignment(target, value)
        number = self._number(value.id) if isinstance(value, ast.Name) else self.known.get(self._key(value))
        if number is not None:
            self._again(statement, target, number)
            return
        key, load = self._key(value), _load_in(value)
        replaced = self._other_padding(value, load) if load is not None else None
        bare = self._key(_unpadded(value, load)) if load is not None and replaced is None else key
        self.known[key] = self._new()
        self.known.setdefault(bare, self.known[key])
        self._keep(statement if replaced is None else assignment(target, replaced), self.known[key])

    def _remember(self, effects: Sequence[ast.Call]) -> None:
        """Note what a store has written, until the next effect: that may reach the same memory by another pointer."""
        if all(called(call) == "tl.debug_barrier" for call in effects):
            return
        self.stored = None
        if len(effects) > 1 or called(effects[0]) != "tl.store" or not effects[0].args:
            return
        pointer, value = effects[0].args[0], argument(effects[0], "value", 1)
        root = pointer
        while isinstance(root, ast.BinOp):
            root = root.left
        if isinstance(root, ast.Name) and root.id in self.pointers and isinstance(value, ast.Name):
            place = self._key(pointer), self._key_of_mask(argument(effects[0], "mask", 2))
            self.stored = (*place, self._number(value.id), root.id)

    def _forwarded(self, value: ast.expr) -> ast.expr:
        """A load, or a conversion of one, made of what the last store wrote there; else as it is."""
        load = _load_in(value)
        if (
            load is None
            or not load.args
            or self.stored is None
            or {"volatile", "cache_modifier"} & {k.arg for k in load.keywords}
        ):
            return value
        *place, number, root = self.stored
        mask, other, holder = argument(load, "mask", 1), argument(load, "other", 2), self._holder(number)
        if holder is None or place != [self._key(load.args[0]), self._key_of_mask(mask)]:
            return value
        text = f"{holder}.to({root}.dtype.element_ty)"
        if mask is not None and other is not None:
            text = f"tl.where({spell(mask)}, {text}, {spell(other)})"
        kept = parse_expression(text)
        return mapped(value, lambda part: kept if part is load else None)

    def _key_of_mask(self, mask: ast.expr | None) -> str:
        return self._key(mask) if mask is not None else ""

    def _again(self, statement: ast.Assign, target: str, number: int) -> None:
        """A value that is known: nothing to do, a copy, or a computation that is put off."""
        self.pending.pop(target, None)
        if self.held.get(target) == number:
            self.numbers[target] = number
            return
        holder = self._holder(number)
        if holder is not None:
            statement = assignment(target, ast.Name(holder, ast.Load()))
        if target in names_read(statement):
            self._keep(statement, number)
            return
        self.pending[target], self.numbers[target] = statement, number

    def _other_padding(self, value: ast.expr, load: ast.Call) -> ast.expr | None:
        """The same load seen before with another `other=`: select instead of loading again."""
        mask, other = argument(load, "mask", 1), argument(load, "other", 2)
        number = self.known.get(self._key(_unpadded(value, load)))
        holder = self._holder(number) if number is not None else None
        if holder is None or mask is None:
            return None
        if other is None:
            return ast.Name(holder, ast.Load())
        where = ast.Attribute(ast.Name("tl", ast.Load()), "where", ast.Load())
        return ast.Call(where, [mask, ast.Name(holder, ast.Load()), other], [])

    def _holder(self, number: int) -> str | None:
        return next((name for name, held in self.held.items() if held == number), None)

    def _key(self, value: ast.expr) -> str:
        names = {n: f"v{self._number(n)}" for n in sorted(names_read(value))}
        loads = "tl.load" in spell(value)
        value = mapped(value, _unhinted) if loads else value
        numbered = substitute(value, {n: ast.Name(v, ast.Load()) for n, v in names.items()})
        return spell(numbered) + (f"@{self.memory}" if loads else "")


def _unhinted(part: ast.AST) -> ast.Call | None:
    """A load without what it tells the cache."""
    if called(part) != "tl.load":
        return None
    assert isinstance(part, ast.Call)
    load = mapped_call(part, _unhinted)
    return ast.Call(load.func, load.args, [k for k in load.keywords if k.arg not in HINTS])


def _unpadded(value: ast.expr, load: ast.Call) -> ast.expr:
    """The expression with the load's `other=` left out."""
    bare = ast.Call(load.func, load.args[:2], [k for k in load.keywords if k.arg != "other"])
    if value is load:
        return bare
    assert isinstance(value, ast.Call)
    return ast.Call(ast.Attribute(bare, "to", ast.Load()), value.args, value.keywords)
