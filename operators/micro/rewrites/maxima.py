"""How a pass keeps a running maximum, and the shapes of accumulators: what `online-row` knows before it rescales."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression
from operators.micro.kernels import SourceKernel
from operators.micro.rewrites.rows import Neighbours
from operators.micro.syntax import argument, called, names_read, names_written, spell

EXPONENTIALS = ("tl.exp", "tl.exp2", "tl.math.exp", "tl.math.exp2")


@dataclass(frozen=True)
class Maximum:
    """The running maximum of the first pass."""

    name: str  # what the second pass subtracts
    update: ast.Assign  # `name = tl.maximum(name, increment)` in the first pass
    increment: str
    vector: str = ""  # the elementwise accumulator, when the maximum is taken only after the pass
    scale: str = ""  # when the first pass already rescales: its names of the factor and the shift
    shift: str = ""


def running_maximum(pair: Neighbours, name: str) -> Maximum | None:
    """How the first pass computes the running maximum that the second pass knows as `name`."""
    body = pair.first.node.body
    update = maximum_update(body, name)
    if update is not None:
        return Maximum(name, update[0], update[1])
    online = _online(body, name)
    if online is not None:
        return online
    taken = [s for s in pair.late if isinstance(s, ast.Assign) and names_written(s) == {name}]
    if len(taken) != 1 or called(taken[0].value) != "tl.max":
        return None
    call = taken[0].value
    assert isinstance(call, ast.Call)
    vector = call.args[0]
    axis = argument(call, "axis", 1)
    if not isinstance(vector, ast.Name) or axis is None or len(call.args) + len(call.keywords) != 2:
        return None
    rank = rank_of(pair.kernel, vector.id)
    update = maximum_update(body, vector.id)
    if update is None or rank is None or rank == ((),) or len(rank) != 1:
        return None
    everyone = [*body, *pair.gap, pair.second.node, *pair.after]
    others = [s for s in everyone if s is not update[0] and s is not taken[0] and vector.id in names_read(s)]
    return None if others else Maximum(name, update[0], f"tl.max({update[1]}, axis={spell(axis)})", vector.id)


def maximum_update(body: list[ast.stmt], name: str) -> tuple[ast.Assign, str] | None:
    """`name = tl.maximum(name, increment)`, the only assignment and use of the name in the pass."""
    touching = [s for s in body if name in names_read(s) | names_written(s)]
    if len(touching) != 1 or not isinstance(touching[0], ast.Assign) or called(touching[0].value) != "tl.maximum":
        return None
    call = touching[0].value
    assert isinstance(call, ast.Call)
    sides = [spell(a) for a in call.args]
    if len(sides) != 2 or name not in sides or names_written(touching[0]) != {name}:
        return None
    return touching[0], sides[1] if sides[0] == name else sides[0]


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
    return None if shift is None or scale is None else Maximum(name, start, "", "", scale, shift)


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
    if called(value) in ("tl.sum", "tl.max", "tl.min") and isinstance(value, ast.Call):
        if isinstance(value.args[0], ast.Name) and len(value.args) + len(value.keywords) == 2:
            inner = rank_of(kernel, value.args[0].id)
            return ((),) if inner is not None and len(inner) == 1 and inner != ((),) else None
        return None
    literal = isinstance(value, ast.Constant | ast.UnaryOp) or called(value) == "float"
    return ((),) if literal else None
