"""A maximum pass and a pass of sums of exponentials as one: the algebra of `online-row`.

A sum that is linear in `exp(e - maximum)` may be kept relative to the running maximum, if it is multiplied by
`exp(old - new)` whenever the maximum rises. What only scales the whole sum (a division by the final total) moves
behind the pass.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from evo_kernel.syntax import parse_expression, parse_module
from operators.micro.kernels import SourceKernel
from operators.micro.rewrites.rows import Merged, Neighbours
from operators.micro.syntax import (
    KEEPS_NAN,
    LARGER_OR_NAN,
    argument,
    assignment,
    called,
    fresh_name,
    mapped,
    names_read,
    names_written,
    spell,
)

EXPONENTIALS = ("tl.exp", "tl.exp2", "tl.math.exp", "tl.math.exp2")


@dataclass(frozen=True)
class Maximum:
    """The running maximum of the first pass."""

    name: str  # what the second pass subtracts
    update: ast.Assign  # `name = tl.maximum(name, increment)` in the first pass
    increment: str
    keeps: str = ""  # what follows the increment there: whether NaN is kept
    vector: str = ""  # the elementwise accumulator, when the maximum is taken only after the pass
    scale: str = ""  # when the first pass already rescales: its names of the factor and the shift
    shift: str = ""


def running_maximum(pair: Neighbours, name: str) -> Maximum | None:
    """How the first pass computes the running maximum that the second pass knows as `name`."""
    body = pair.first.node.body
    update = maximum_update(body, name)
    if update is not None:
        return Maximum(name, *update)
    online = _online(body, name)
    if online is not None:
        return online
    taken = [s for s in pair.late if isinstance(s, ast.Assign) and names_written(s) == {name}]
    call = taken[0].value if len(taken) == 1 else None
    if not isinstance(call, ast.Call) or (combined := _across(call)) is None:
        return None
    vector, axis, combiner = combined
    rank = rank_of(pair.kernel, vector.id)
    update = maximum_update(body, vector.id)
    if update is None or rank is None or rank == ((),) or len(rank) != 1 or bool(update[2]) != bool(combiner):
        return None
    everyone = [*body, *pair.gap, pair.second.node, *pair.after]
    others = [s for s in everyone if s is not update[0] and s is not taken[0] and vector.id in names_read(s)]
    inside = f"tl.reduce({update[1]}, {axis}, {combiner})" if combiner else f"tl.max({update[1]}, axis={axis})"
    return None if others else Maximum(name, update[0], inside, update[2], vector.id)


def _across(call: ast.Call) -> tuple[ast.Name, str, str] | None:
    """What a maximum over an axis is taken of, the axis, and the function that keeps NaN, if it does."""
    axis, combiner = argument(call, "axis", 1), argument(call, "combine_fn", 2)
    given = len(call.args) + len(call.keywords)
    plain = called(call) == "tl.max" and given == 2
    keeps = called(call) == "tl.reduce" and given == 3 and combiner is not None and spell(combiner) == LARGER_OR_NAN
    if axis is None or not call.args or not isinstance(call.args[0], ast.Name) or not (plain or keeps):
        return None
    return call.args[0], spell(axis), LARGER_OR_NAN if keeps else ""


def maximum_update(body: list[ast.stmt], name: str) -> tuple[ast.Assign, str, str] | None:
    """`name = tl.maximum(name, increment)`, the only assignment and use of the name in the pass; the increment, and
    what follows it where NaN is kept."""
    touching = [s for s in body if name in names_read(s) | names_written(s)]
    if len(touching) != 1 or not isinstance(touching[0], ast.Assign) or called(touching[0].value) != "tl.maximum":
        return None
    call = touching[0].value
    assert isinstance(call, ast.Call)
    sides, keeps = [spell(a) for a in call.args], [spell(k) for k in call.keywords]
    if len(sides) != 2 or name not in sides or names_written(touching[0]) != {name} or keeps not in ([], [KEEPS_NAN]):
        return None
    return touching[0], sides[1] if sides[0] == name else sides[0], "".join(f", {text}" for text in keeps)


def _online(body: list[ast.stmt], name: str) -> Maximum | None:
    """A pass that already keeps a running maximum with a factor, as this file writes it."""
    values = {spell(s.targets[0]): s for s in body if isinstance(s, ast.Assign)}
    last = values.get(name)
    if last is None or not isinstance(last.value, ast.Name):
        return None
    new = last.value.id
    start = values.get(new)
    if start is None or not spell(start.value).startswith(f"tl.maximum({name}, "):
        return None
    wanted = spell(parse_expression(f"tl.where({new} == -float('inf'), 0.0, {new})"))
    shift = next((n for n, s in values.items() if spell(s.value) == wanted), None)
    scales = {f"{function}({name} - {shift})" for function in EXPONENTIALS}
    scale = next((n for n, s in values.items() if spell(s.value) in scales), None)
    return None if shift is None or scale is None else Maximum(name, start, "", scale=scale, shift=shift)


def root_of(node: ast.expr) -> str | None:
    """`m` of `m`, `m[:, None]` and the like."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def rank_of(kernel: SourceKernel, name: str) -> tuple[object, ...] | None:
    """The shape that a name is first given, as spelled sizes; `((),)` for a scalar; None when it cannot be told."""
    places = kernel.definitions.get(name, ())
    if not places or not isinstance(places[0], ast.Assign):
        return None
    value = places[0].value
    if called(value) in ("tl.zeros", "tl.full") and isinstance(value, ast.Call):
        shape = argument(value, "shape", 0)
        return tuple(spell(e) for e in shape.elts) if isinstance(shape, ast.List | ast.Tuple) else None
    if called(value) in ("tl.sum", "tl.max", "tl.min", "tl.reduce") and isinstance(value, ast.Call):
        given = 3 if called(value) == "tl.reduce" else 2
        if isinstance(value.args[0], ast.Name) and len(value.args) + len(value.keywords) == given:
            inner = rank_of(kernel, value.args[0].id)
            return ((),) if inner is not None and len(inner) == 1 and inner != ((),) else None
        return None
    literal = isinstance(value, ast.Constant | ast.UnaryOp) or called(value) == "float"
    return ((),) if literal else None


class _NotLinear(Exception):
    """The sum is no linear function of the exponentials."""


@dataclass
class _Sums:
    """Degrees of expressions of the second pass in its exponentials, and the factors that can move out."""

    maximum: str
    needed: set[str]
    body: list[ast.stmt]
    divisors: dict[int, ast.expr] = field(default_factory=dict)  # division → divisor
    dividing: dict[str, ast.expr] = field(default_factory=dict)  # divisors of the sum that is looked at
    exponentials: list[ast.Call] = field(default_factory=list)

    def definition(self, name: str) -> ast.expr | None:
        values = [s.value for s in self.body if isinstance(s, ast.Assign) and names_written(s) == {name}]
        return values[0] if len(values) == 1 else None

    def late(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value depends on what the first pass computed."""
        for name in names_read(node):
            if name in self.needed:
                return True
            if name not in seen and any(self.late(v, seen | {name}) for v in self._values(name)):
                return True
        return False

    def _values(self, name: str) -> list[ast.expr]:
        return [s.value for s in self.body if isinstance(s, ast.Assign | ast.AugAssign) and name in names_written(s)]

    def degree(self, node: ast.expr) -> int:
        if not self.late(node):
            return 0
        match node:
            case ast.Name() if node.id not in self.needed and (value := self.definition(node.id)) is not None:
                return self.degree(value)
            case ast.Call() if called(node) in EXPONENTIALS:
                inner = node.args[0]
                if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub) or self.late(inner.left):
                    raise _NotLinear
                if root_of(inner.right) != self.maximum:
                    raise _NotLinear
                self.exponentials.append(node)
                return 1
            case ast.BinOp(op=ast.Mult()):
                return self._product(node.left, node.right)
            case ast.BinOp(op=ast.Div()):
                degree = self.degree(node.left)
                if self.late(node.right):
                    root = root_of(node.right)
                    if root not in self.needed or root == self.maximum:
                        raise _NotLinear
                    self.divisors[id(node)] = self.dividing[spell(node.right)] = node.right
                return degree
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                degrees = {self.degree(node.left), self.degree(node.right)}
                if len(degrees) != 1:
                    raise _NotLinear
                return degrees.pop()
            case ast.UnaryOp(op=ast.USub()):
                return self.degree(node.operand)
            case ast.Subscript():
                return self.degree(node.value)
            case ast.Call():
                return self._call(node)
        raise _NotLinear

    def _product(self, left: ast.expr, right: ast.expr) -> int:
        total = self.degree(left) + self.degree(right)
        if total > 1:
            raise _NotLinear
        return total

    def _call(self, node: ast.Call) -> int:
        name = called(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self.degree(node.func.value)
        if name in ("tl.sum", "tl.trans", "tl.broadcast_to", "tl.reshape"):
            return self.degree(node.args[0])
        if name == "tl.dot" and len(node.args) == 2:
            return self._product(node.args[0], node.args[1])
        if name == "tl.where" and not self.late(node.args[0]) and spell(node.args[2]) in ("0.0", "0"):
            return self.degree(node.args[1])
        raise _NotLinear


def merged_sums(pair: Neighbours, needed: set[str]) -> Merged | None:
    """None when the passes are no maximum and sums of exponentials."""
    for name in sorted(needed):
        maximum = running_maximum(pair, name)
        if maximum is not None:
            try:
                return _Merger(pair, needed, maximum).parts()
            except _NotLinear:
                continue
    return None


class _Merger:
    def __init__(self, pair: Neighbours, needed: set[str], maximum: Maximum) -> None:
        self.pair, self.maximum, kernel = pair, maximum, pair.kernel
        self.sums = _Sums(maximum.name, needed, pair.second.node.body)
        self.new = fresh_name(f"{maximum.name}_new", kernel.names)
        self.shift = maximum.shift or fresh_name(f"{maximum.name}_shift", kernel.names)
        self.scale = maximum.scale or fresh_name("rescale", kernel.names)
        self.rank = rank_of(kernel, maximum.name) if not maximum.vector else ((),)
        self.after: list[str] = []

    def parts(self) -> Merged:
        pair, maximum = self.pair, self.maximum
        if self.rank is None:
            raise _NotLinear
        second = [self._statement(s) for s in pair.second.node.body]
        function = {called(c) for c in self.sums.exponentials}
        if len(function) != 1:
            raise _NotLinear
        first = self._first(function.pop())
        before = (f"{maximum.name} = -float('inf')",) if maximum.vector else ()
        swaps = ()
        if maximum.vector:
            taken = next(s for s in pair.late if maximum.name in names_written(s))
            assert isinstance(taken, ast.Assign)
            swaps = ((spell(taken.value), maximum.name),)
        return Merged(before, (*first, *second), tuple(self.after), swaps)

    def _first(self, function: str) -> list[ast.stmt]:
        """The first pass, with the maximum's rise told as a factor."""
        if self.maximum.scale:
            return list(self.pair.first.node.body)
        name, new, shift = self.maximum.name, self.new, self.shift
        text = (
            f"{new} = tl.maximum({name}, {self.maximum.increment}{self.maximum.keeps})\n"
            f"{shift} = tl.where({new} == -float('inf'), 0.0, {new})\n"
            f"{self.scale} = {function}({name} - {shift})\n"
            f"{name} = {new}\n"
        )
        done: list[ast.stmt] = []
        for statement in self.pair.first.node.body:
            done += parse_module(text).body if statement is self.maximum.update else [statement]
        return done

    def _statement(self, statement: ast.stmt) -> ast.stmt:
        """A statement of the second pass: relative to the shift, and rescaled where it accumulates."""
        sums = self.sums
        target = names_written(statement)
        if len(target) != 1 or not isinstance(statement, ast.Assign | ast.AugAssign):
            if sums.late(statement):
                raise _NotLinear
            return statement
        name = target.pop()
        increment = _increment(statement, name)
        if increment is None:
            if isinstance(statement, ast.AugAssign) or name in names_read(statement.value):
                if sums.late(statement):
                    raise _NotLinear
                return statement
            sums.degree(statement.value)
            return self._relative(statement)
        sums.dividing = {}
        if sums.degree(increment[0]) == 0:
            return statement
        factor = self._broadcast(name)
        if len(sums.dividing) > 1:
            raise _NotLinear
        for divisor in sums.dividing.values():
            root = root_of(divisor)
            mine = rank_of(self.pair.kernel, name)
            theirs = rank_of(self.pair.kernel, root or "")
            if mine is None or theirs is None:
                raise _NotLinear
            scalar = theirs == ((),)
            rows = len(theirs) == 1 and len(mine) == 2 and mine[0] == theirs[0] and spell(divisor) == f"{root}[:, None]"
            same = theirs == mine and spell(divisor) == root
            if not (scalar or rows or same):
                raise _NotLinear
            self.after.append(f"{name} = {name} / {spell(divisor)}")
        relative = self._relative(ast.Expr(increment[0])).value  # type: ignore[attr-defined]
        if increment[1]:
            assert isinstance(relative, ast.Call)
            call = ast.Call(relative.func, relative.args, [*relative.keywords])
            call.args = [*relative.args[:2], parse_expression(f"{name} * {factor}")]
            return assignment(name, call)
        return parse_module(f"{name} = {name} * {factor} + {spell(relative)}").body[0]

    def _relative(self, statement: ast.stmt) -> ast.stmt:
        """The statement with the shift for the maximum, and without the divisions that move behind the pass."""
        sums, shift = self.sums, self.shift
        exponentials = {id(c) for c in sums.exponentials}

        def change(part: ast.AST) -> ast.AST | None:
            if id(part) in sums.divisors:
                assert isinstance(part, ast.BinOp)
                return mapped(part.left, change)
            if id(part) in exponentials:
                assert isinstance(part, ast.Call) and isinstance(part.args[0], ast.BinOp)
                right = parse_expression(spell(part.args[0].right).replace(sums.maximum, shift, 1))
                return ast.Call(part.func, [ast.BinOp(part.args[0].left, ast.Sub(), right)], part.keywords)
            return None

        return mapped(statement, change)

    def _broadcast(self, name: str) -> str:
        """The factor in a shape that multiplies an accumulator."""
        mine, rank = rank_of(self.pair.kernel, name), self.rank
        assert rank is not None
        if mine is None:
            raise _NotLinear
        if rank == ((),) or len(rank) == len(mine):
            return self.scale
        if len(rank) == 1 and len(mine) == 2 and rank[0] in mine and mine[0] != mine[1]:
            return f"{self.scale}[:, None]" if mine[0] == rank[0] else f"{self.scale}[None, :]"
        raise _NotLinear


def _increment(statement: ast.Assign | ast.AugAssign, name: str) -> tuple[ast.expr, bool] | None:
    """What a statement adds to an accumulator, and whether as `tl.dot(a, b, accumulator)`; None when it does not."""
    value = statement.value
    if isinstance(statement, ast.AugAssign):
        return (value, False) if isinstance(statement.op, ast.Add) else None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        if spell(value.left) == name and name not in names_read(value.right):
            return value.right, False
        if spell(value.right) == name and name not in names_read(value.left):
            return value.left, False
    if called(value) == "tl.dot" and isinstance(value, ast.Call):
        accumulator = argument(value, "acc", 2)
        if accumulator is not None and spell(accumulator) == name and name not in names_read(*value.args[:2]):
            kept = [k for k in value.keywords if k.arg != "acc"]
            return ast.Call(value.func, value.args[:2], kept), True
    return None
