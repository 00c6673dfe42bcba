"""`online-row`: two passes over the same range become one.

* independent passes: their bodies, one after the other;
* a maximum, then sums of `exp(x - maximum)` (softmax, logsumexp, attention): a running maximum, and sums that are
  rescaled when it rises (Milakov and Gimelshein 2018; Rabe and Staats 2021 for the weighted sum).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise

from evo_kernel.syntax import parse_expression
from evo_kernel.types import TaskCard
from operators.micro.kernels import Loop, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite, kernel_region
from operators.micro.rewrites.rescale import merged_sums
from operators.micro.rewrites.rows import Merged, Neighbours, Numbering, has_effect, is_straight, loads_apart
from operators.micro.syntax import mapped, names_read, names_written, spell, statements


class OnlineRow(Rewrite):
    name, family, form = "online-row", "algorithm", "pass"
    lacks = "has no such two passes that can be one"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> list[int]:
        return list(_pairs(kernel))

    def region(self, kernel: SourceKernel, form: int) -> str:
        return f"{kernel_region(kernel.name)}, passes {form} and {form + 1}"

    def find(self, module: KernelModule, kernel: SourceKernel, form: int) -> tuple[Neighbours, Merged] | None:
        pair = _pairs(kernel).get(form or 1)
        merged = _merge(pair) if pair is not None else None
        return (pair, merged) if pair is not None and merged is not None else None

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: tuple[Neighbours, Merged]) -> str:
        pair, merged = found
        loop, swaps = pair.first.node, dict(merged.replaced)
        body = Numbering().run(loads_apart(pair.kernel, merged.body))
        text = [*[spell(s) for s in pair.early], *merged.before]
        head = f"for {pair.first.target} in {spell(loop.iter)}:\n"
        text.append(head + "\n".join("    " + line for s in body for line in spell(s).splitlines()))
        late = [_swapped(s, swaps).partition(" = ") for s in pair.late]
        text += [*["".join(line) for line in late if line[0] != line[2]], *merged.after]
        edits = [module.replace_range(loop, pair.second.node, "\n".join(text))]
        for statement in pair.after:
            if (changed := _swapped(statement, swaps)) != spell(statement):
                edits.append(module.replace(statement, changed))
        return module.edited(edits)


def _pairs(kernel: SourceKernel) -> dict[int, Neighbours]:
    """Neighbouring top-level passes over one range, numbered from 1."""
    top = {id(s): i for i, s in enumerate(kernel.body)}
    loops = [loop for loop in kernel.loops if id(loop.node) in top]
    found = {}
    for number, (first, second) in enumerate(pairwise(loops), start=1):
        start, stop = top[id(first.node)], top[id(second.node)]
        gap, after = tuple(kernel.body[start + 1 : stop]), tuple(kernel.body[stop + 1 :])
        ranges = [[spell(x) for x in (loop.start, loop.stop, loop.step)] for loop in (first, second)]
        straight = all(is_straight(body) for body in (first.node.body, gap, second.node.body))
        bounds = names_read(first.start, first.stop, first.step)
        steady = not bounds & names_written(*gap, *first.node.body, *second.node.body)
        plain = first.function == second.function and first.target == second.target
        plain = plain and not first.node.orelse and not second.node.orelse
        if (
            ranges[0] == ranges[1]
            and straight
            and steady
            and plain
            and not first.node.orelse
            and not second.node.orelse
        ):
            found[number] = Neighbours(kernel, first, second, gap, after)
    return found


def carried(loop: Loop) -> set[str]:
    """Names that a pass reads before it assigns them, and assigns: its accumulators."""
    written: set[str] = set()
    found: set[str] = set()
    for statement in loop.node.body:
        found |= names_read(statement) - written
        if not isinstance(statement, ast.AugAssign):
            written |= names_written(statement)
    return found & names_written(*loop.node.body)


def _merge(pair: Neighbours) -> Merged | None:
    effects = [
        p for s in (pair.first.node, pair.second.node, *pair.gap) for p in ast.walk(s) if isinstance(p, ast.Call)
    ]
    if any(has_effect(call) for call in effects):
        return None  # a pass that writes must stay where it is
    first, second = carried(pair.first), carried(pair.second)
    early = names_written(*pair.early)
    crossing = names_written(*pair.first.node.body) & (second | early) or early & names_read(*pair.first.node.body)
    if crossing or names_written(*pair.second.node.body) & first:
        return None
    rest = [s for s in (*pair.gap, *pair.after) if not isinstance(s, ast.For)]
    if any(pair.first.target in names_read(s) for s in rest):
        return None
    locals_left = (names_written(*pair.first.node.body) - first) & _read_later(pair.gap)
    if locals_left | (names_written(*pair.second.node.body) - second) & _read_later(pair.after):
        return None
    late = names_written(*pair.late) | first
    needed = late & names_read(*pair.second.node.body)
    if not needed:
        return Merged((), (*pair.first.node.body, *pair.second.node.body), ())
    return merged_sums(pair, needed)


def _read_later(body: Sequence[ast.stmt]) -> set[str]:
    """Names that are read after a pass, in this code, before anyone assigns them again."""
    found: set[str] = set()
    written: set[str] = set()
    for statement in statements(body):
        if not isinstance(statement, ast.For):
            found |= names_read(statement) - written
            written |= names_written(statement)
    return found


def _swapped(statement: ast.stmt, swaps: dict[str, str]) -> str:
    """The statement with expressions exchanged, by their spelling."""

    def change(part: ast.AST) -> ast.expr | None:
        text = swaps.get(spell(part)) if isinstance(part, ast.expr) else None
        return parse_expression(text) if text is not None else None

    return spell(mapped(statement, change) if swaps else statement)
