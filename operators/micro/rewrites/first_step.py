"""Passes that are walked once: what an accumulator's first step makes of its start, and moments as two sums.

Straight code in, straight code out. torch.compile's kernels carry blocks of accumulators through a loop and reduce them
after it; where the loop has one step, nothing needs to be carried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evo_kernel.syntax import parse_module
from operators.micro.syntax import KEEPS_NAN, argument, called, fresh_name, mapped, names_read, names_written, spell

_NEUTRAL = {"0": "+", "0.0": "+", "float('-inf')": "tl.maximum", "float('inf')": "tl.minimum"}
"""What an accumulator starts from → the operation that it does not change; extremes only if they keep NaN."""


def without_starts(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Straight code in which `start + x` is `x` where `start` holds zeros, and a maximum or minimum that keeps NaN too,
    where `start` holds its neutral element."""
    neutral: dict[str, str] = {}
    done: list[ast.stmt] = []
    for statement in body:
        done.append(mapped(statement, lambda part: _unmoved(part, neutral)))
        for name in names_written(statement):
            neutral.pop(name, None)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            neutral[statement.targets[0].id] = _NEUTRAL.get(_start(statement.value), "")
    return done


def _start(value: ast.expr) -> str:
    """The number that a block is filled with, as text; empty where it is no such block."""
    if called(value) == "tl.zeros":
        return "0"
    filled = argument(value, "value", 1) if called(value) == "tl.full" and isinstance(value, ast.Call) else None
    return spell(filled) if filled is not None else ""


def _unmoved(part: ast.AST, neutral: Mapping[str, str]) -> ast.expr | None:
    match part:
        case ast.BinOp(left=ast.Name(id=name), op=ast.Add(), right=right) if neutral.get(name) == "+":
            return mapped(right, lambda inner: _unmoved(inner, neutral))
        case ast.Call(args=[ast.Name(id=name), right], keywords=[keyword]) if (
            neutral.get(name) == called(part) and spell(keyword) == KEEPS_NAN
        ):
            return mapped(right, lambda inner: _unmoved(inner, neutral))
    return None


@dataclass(frozen=True)
class _Moments:
    """One step of a block's mean, sum of squared differences and count, as torch.compile spells it."""

    values: ast.Name
    carried: tuple[str, ...]
    stepped: tuple[str, ...]
    at: int


def with_sums(body: Sequence[ast.stmt], size: str, taken: set[str]) -> list[ast.stmt]:
    """Straight code in which moments of a row are its sum, and the sum of squared differences from the mean.

    `size`: the parameter that says how long a row is. `taken` grows by the names used.
    """
    body = list(body)
    for moments in list(_moments(body)):
        body = _summed(body, moments, size, taken) or body
    return body


def _moments(body: Sequence[ast.stmt]) -> Iterator[_Moments]:
    for at, statement in enumerate(body):
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call(args=[ast.Name() as values, *carried, _])):
                if called(statement.value) == "added_moments":
                    yield _Moments(values, tuple(map(spell, carried)), tuple(map(spell, names)), at)


def _summed(body: Sequence[ast.stmt], moments: _Moments, size: str, taken: set[str]) -> list[ast.stmt] | None:
    """None where the step is not the only one, or its mask is not that of a row."""
    carried, stepped = moments.carried, moments.stepped
    at = next(n for n, s in enumerate(body) if names_written(s) >= set(stepped))
    places = {n for n, s in enumerate(body) if names_written(s) & set(carried)}
    kept = {n: body[n] for n in places if n > at}
    masks = {_mask(s, dict(zip(carried, stepped, strict=True))) for s in kept.values()}
    mask, reduced = masks.pop() if len(masks) == 1 else "", max(places) + 1
    starts = [s.value for n in places if n < at and isinstance(s := body[n], ast.Assign)]
    if not mask or len(kept) != 3 or len(starts) != 3 or any(_start(value) != "0" for value in starts):
        return None
    reduction = body[reduced] if reduced < len(body) else None
    match reduction:
        case ast.Assign(targets=[ast.Tuple(elts=[mean, squares, count])], value=value) if (
            spell(value) == f"tl.reduce(({', '.join(carried)}), 1, joined_moments)"
        ):
            rest = body[reduced + 1 :]
        case _:
            return None
    inside = set(range(at, reduced + 1)) | places
    others = names_read(*(s for n, s in enumerate(body) if n not in inside))
    if others & {*carried, *stepped, spell(count)} or not _is_of_row(body[:at], mask, size):
        return None
    apart = fresh_name("apart", taken)
    taken.add(apart)
    text = f"""{spell(mean)} = tl.sum(tl.where({mask}, {moments.values.id}, 0.0), 1) / tl.cast({size}, tl.float32)
{apart} = tl.where({mask}, {moments.values.id} - {spell(mean)}[:, None], 0.0)
{spell(squares)} = tl.sum({apart} * {apart}, 1)"""
    before = [s for n, s in enumerate(body[:reduced]) if n not in places and n != at]
    return [*before, *parse_module(text).body, *rest]


def _mask(statement: ast.stmt, stepped: Mapping[str, str]) -> str:
    """The mask by which a carried name takes its step; empty where the statement says something else."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[mask, new, old])):
            plain = called(statement.value) == "tl.where" and spell(new) == stepped.get(name) and spell(old) == name
            return spell(mask) if plain else ""
    return ""


def _is_of_row(before: Sequence[ast.stmt], mask: str, size: str) -> bool:
    """Whether a mask is `column < size`, and beside that only what is the same for a whole row."""
    values = {
        s.targets[0].id: s.value for s in before if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
    }
    bounds = 0
    for name in mask.split(" & "):
        if (value := values.get(name)) is None:
            return False
        bound = value.left if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr) else value
        match bound:
            case ast.Compare(ops=[ast.Lt()], comparators=[ast.Name(id=stop)]) if stop == size:
                bounds += 1
            case _ if "[None, :]" in _opened(value, values):
                return False
    return bounds == 1


def _opened(value: ast.expr, values: Mapping[str, ast.expr]) -> str:
    """The text of an expression and of all that it is computed from."""
    texts, todo, seen = list[str](), [value], set[str]()
    while todo:
        texts.append(spell(part := todo.pop()))
        todo += [values[name] for name in names_read(part) - seen if name in values]
        seen |= names_read(part)
    return "\n".join(texts)
