"""`one-pass-row` and `online-row`: fewer passes over a row.

`one-pass-row`: the whole row in registers, read once, and what is stored is not loaded again; rows too long for that
keep the loops.

`online-row`: two passes over the same range become one.

* independent passes: their bodies, one after the other;
* a maximum, then sums of `exp(x - maximum)` (softmax, logsumexp, attention): a running maximum, and sums that are
  rescaled when it rises (Milakov and Gimelshein 2018; Rabe and Staats 2021 for the weighted sum).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise
from textwrap import indent

from evo_kernel.syntax import parse_expression
from evo_kernel.types import TaskCard
from operators.micro.host_code import launches_for
from operators.micro.kernels import Loop, SourceKernel, SourceLaunch
from operators.micro.module import Edit, KernelModule
from operators.micro.rewrites.accesses import condition
from operators.micro.rewrites.base import Rewrite, kernel_region
from operators.micro.rewrites.first_step import with_sums, without_starts
from operators.micro.rewrites.grids import statement_text
from operators.micro.rewrites.rescale import merged_sums
from operators.micro.rewrites.rows import (
    Merged,
    Neighbours,
    Numbering,
    Passes,
    at_zero,
    has_effect,
    is_straight,
    loads_apart,
    only_shapes,
    passes_of,
)
from operators.micro.syntax import copy_of, mapped, names_read, names_written, spell, statements

LIMIT = 32768  # elements of a row: 256 a thread at 4 warps, 32 at 32 warps


class OnePassRow(Rewrite):
    name, family, lacks = "one-pass-row", "algorithm", "has no passes of one block size over a row"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> Passes | None:
        passes = passes_of(kernel)
        launches = module.launches_of(kernel.name)
        if passes is None or not launches or kernel.calls("tl.dot") or not only_shapes(kernel, passes.block):
            return None
        if any(isinstance(s, ast.If | ast.Return) for s in ast.walk(kernel.node)):
            return None
        for launch in launches:
            if passes.stop not in launch.arguments or passes.block not in launch.arguments:
                return None
            if any(
                spell(guard.test) == spell(parse_expression(_test(launch, passes))) for guard in launch.guards
            ) or _is_bound_elsewhere(launch, passes):
                return None
        return passes

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: Passes) -> bool:
        """Whether some case's row is short enough, as far as can be told."""
        sizes = [one.values.get(found.stop) for one in launches_for(module, task, kernel)]
        return not sizes or any(not isinstance(size, int) or size <= LIMIT for size in sizes)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: Passes) -> str:
        node, body = copy_of(kernel.node), []
        node.name = module.fresh(f"{kernel.name.removesuffix('_kernel')}_one_pass_kernel")
        loops = {id(loop.node): loop for loop in found.loops}
        for statement in kernel.body:
            body += at_zero(loops[id(statement)]) if id(statement) in loops else [statement]
        body = without_starts(with_sums(loads_apart(kernel, body), found.stop, set(kernel.names)))
        node.body = Numbering(kernel.pointers).run(body)
        edits = [_launch_edit(module, launch, found, node.name) for launch in module.launches_of(kernel.name)]
        return module.edited(edits, module.add_kernel(spell(node) + "\n"))


def _test(launch: SourceLaunch, passes: Passes) -> str:
    return f"{spell(launch.arguments[passes.stop])} <= {LIMIT}"


def _launch_edit(module: KernelModule, launch: SourceLaunch, passes: Passes, name: str) -> Edit:
    call = copy_of(launch.call)
    assert isinstance(call.func, ast.Subscript)
    size = spell(launch.arguments[passes.stop])
    block, whole = spell(launch.arguments[passes.block]), f"triton.next_power_of_2({size})"
    told = {condition(size, block, False): condition(size, whole, False)}
    told |= {condition(size, block, True): condition(size, whole, True)}
    new = {p.name: told[text] for p in passes.kernel.parameters if (text := _spelled(launch, p.name)) in told}
    values = {passes.block: whole, **new}
    for position, parameter in enumerate(passes.kernel.parameters):
        if parameter.name in values:
            value = parse_expression(values[parameter.name])
            if position < len(call.args):
                call.args[position] = value
            else:
                next(k for k in call.keywords if k.arg == parameter.name).value = value
    grid = spell(call.func.slice)
    bare = spell(ast.Call(ast.Name("", ast.Load()), call.args, call.keywords))
    text = f"if {_test(launch, passes)}:\n    {name}[{grid if grid.startswith('(') else f'({grid})'}]{bare}\nelse:\n"
    return module.replace(launch.statement, text + indent(statement_text(module, launch.statement), "    "))


def _spelled(launch: SourceLaunch, parameter: str) -> str:
    return spell(launch.arguments[parameter]) if parameter in launch.arguments else ""


def _is_bound_elsewhere(launch: SourceLaunch, passes: Passes) -> bool:
    """Whether another constexpr is made of the block's size, in a way other than `drop-masks` writes it."""
    size, block = _spelled(launch, passes.stop), launch.arguments[passes.block]
    known = {condition(size, spell(block), whole) for whole in (False, True)}
    for name in set(passes.kernel.constexprs) & set(launch.arguments) - {passes.block}:
        parts = {spell(part) for part in ast.walk(launch.arguments[name]) if isinstance(part, ast.expr)}
        if spell(block) in parts and _spelled(launch, name) not in known and not isinstance(block, ast.Constant):
            return True
    return False


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
        if ranges[0] == ranges[1] and straight and steady and plain:
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
