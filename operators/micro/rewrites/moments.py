"""A mean pass and a pass of squared differences as one: the other algebra of `online-row`.

Each block gives its count, mean and spread (sum of squared differences from its own mean); two such triples combine
exactly (Chan, Golub and LeVeque 1979). Nothing cancels, so the result is as good as that of two passes.
"""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_module
from operators.micro.rewrites.rows import Merged, Neighbours
from operators.micro.syntax import argument, called, fresh_name, names_read, names_written, spell, substitute


def merged_moments(pair: Neighbours, needed: set[str]) -> Merged | None:
    """None when the passes are no mean and squared differences from it."""
    if len(needed) != 1 or spell(pair.first.start) != "0":
        return None
    mean = next(iter(needed))
    total = _sum_update(pair.first.node.body)
    squares = _sum_update(pair.second.node.body)
    if total is None or squares is None or not _is_mean(pair, mean, *total[:2]):
        return None
    difference = _squared(squares[2], pair.second.node.body)
    centred = difference and _centred(pair, difference, mean)
    if not centred or spell(_local(pair.first.node.body, total[2])) != spell(centred[0]):
        return None
    if total[0] in names_read(pair.second.node, *pair.after, *[s for s in pair.gap if mean not in names_written(s)]):
        return None
    return _parts(pair, mean, total, squares, difference or "")


Sum = tuple[str, bool, ast.expr, ast.stmt]
"""Accumulator, whether it is kept elementwise, the summed expression, the updating statement."""


def _parts(pair: Neighbours, mean: str, total: Sum, squares: Sum, difference: str) -> Merged | None:
    kernel, start, stop = pair.kernel, pair.first.target, spell(pair.first.stop)
    names = {w: fresh_name(w, kernel.names) for w in ("count", "seen", "block_mean", "rise", "spread")}
    count, seen, block_mean, rise, spread = names.values()
    head = f"{count} = tl.minimum({stop} - {start}, {spell(pair.first.step)})\n"
    head += f"{block_mean} = tl.sum({spell(total[2])}, axis=0) / {count}\n"
    tail = (
        f"{rise} = {block_mean} - {mean}\n{seen} = {start} + {count}\n"
        f"{mean} = {mean} + {rise} * ({count} / {seen})\n"
        f"{spread} = {spread} + tl.sum({spell(squares[2])}, axis=0) + {rise} * {rise} * ({start} / {seen}) * {count}\n"
    )
    first = [s for s in pair.first.node.body if s is not total[3]]
    second = [substitute(s, {mean: block_mean}) for s in pair.second.node.body if s is not squares[3]]
    before = (f"{mean} = 0.0", f"{spread} = 0.0")
    mean_text = next(s.value for s in pair.late if isinstance(s, ast.Assign) and names_written(s) == {mean})
    if squares[1]:
        wanted = f"tl.sum({squares[0]}, axis=0)"
        rest = " ".join(spell(s) for s in pair.after)
        if rest.count(squares[0]) != rest.count(wanted) or _reads(pair.after, squares[0]) != rest.count(wanted):
            return None
        swaps = ((wanted, spread), (spell(mean_text), mean))
        after: tuple[str, ...] = ()
    else:
        swaps, after = ((spell(mean_text), mean),), (f"{squares[0]} = {spread}",)
    body = (*first, *parse_module(head).body, *second, *parse_module(tail).body)
    return Merged(before, body, after, swaps)


def _reads(body: tuple[ast.stmt, ...], name: str) -> int:
    parts = (p for s in body for p in ast.walk(s))
    return sum(isinstance(p, ast.Name) and p.id == name for p in parts)


def _sum_update(body: list[ast.stmt]) -> Sum | None:
    """The only accumulation of a pass: `total += x` (elementwise) or `total += tl.sum(x, axis=0)`."""
    updates = [s for s in body if isinstance(s, ast.AugAssign)]
    if len(updates) != 1 or not isinstance(updates[0].op, ast.Add) or not isinstance(updates[0].target, ast.Name):
        return None
    value, name = updates[0].value, updates[0].target.id
    if any(name in names_read(s) for s in body if s is not updates[0]):
        return None
    if any(n in names_read(s) for s in body if isinstance(s, ast.Assign) for n in names_written(s)):
        return None
    if called(value) != "tl.sum":
        return name, True, value, updates[0]
    assert isinstance(value, ast.Call)
    axis = argument(value, "axis", 1)
    plain = axis is not None and spell(axis) == "0" and len(value.args) + len(value.keywords) == 2
    return (name, False, value.args[0], updates[0]) if plain else None


def _is_mean(pair: Neighbours, mean: str, total: str, elementwise: bool) -> bool:
    """`mean = tl.sum(total, axis=0) / n` (or `total / n`), where n is how long the row is."""
    value = next((s.value for s in pair.late if isinstance(s, ast.Assign) and names_written(s) == {mean}), None)
    stop = spell(pair.first.stop)
    sums = (f"tl.sum({total}, axis=0)", f"tl.sum({total}, 0)") if elementwise else (total,)
    wanted = {f"{text} / {stop}" for text in sums}
    return value is not None and spell(value) in wanted and pair.kernel.value_of(mean) is not None


def _local(body: list[ast.stmt], node: ast.expr) -> ast.expr:
    """The expression with names of the pass replaced by their values."""
    values = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = substitute(statement.value, values)
    return substitute(node, values)


def _squared(node: ast.expr, body: list[ast.stmt]) -> str | None:
    """`d` of `d * d`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Name):
        return node.left.id if spell(node.left) == spell(node.right) else None
    return None


def _centred(pair: Neighbours, difference: str, mean: str) -> tuple[ast.expr] | None:
    """x of `difference = tl.where(mask, x - mean, 0.0)`; the second pass uses the mean nowhere else."""
    body = pair.second.node.body
    places = [s for s in body if isinstance(s, ast.Assign) and names_written(s) == {difference}]
    if len(places) != 1 or called(places[0].value) != "tl.where" or _reads(tuple(body), mean) != 1:
        return None
    call = places[0].value
    assert isinstance(call, ast.Call)
    if len(call.args) != 3 or spell(call.args[2]) not in ("0.0", "0"):
        return None
    inner = call.args[1]
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and spell(inner.right) == mean:
        return (_local(body, inner.left),)
    return None
