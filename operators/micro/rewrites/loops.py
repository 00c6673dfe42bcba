"""`hoist` and `software-pipeline`: what does not change in a loop leaves it, what later iterations load starts earlier.

Out of a loop go loads, and divisions (as multiplication by a reciprocal).

Address arithmetic alone is not offered: the compiler moves it by itself, and the plan would be the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from evo_kernel.types import Strategy, TaskCard
from operators.micro.kernels import Loop, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite, kernel_region
from operators.micro.rewrites.grids import GridRewrite, contracts
from operators.micro.rewrites.rescale import root_of
from operators.micro.syntax import called, fresh_name, names_read, names_written, spell
from operators.micro.text import Edit


class Hoist(Rewrite):
    name, family, lacks = "hoist", "reordering", "has no such loop with anything that could be moved out of it"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> range:
        return range(1, len(kernel.loops) + 1)

    def region(self, kernel: SourceKernel, form: int) -> str:
        return f"{kernel_region(kernel.name)}, loop {form}"

    def form_of(self, strategy: Strategy) -> int:
        _, said, number = strategy.region.rpartition(", loop ")
        return int(number) if said else 0

    def find(self, module: KernelModule, kernel: SourceKernel, form: int) -> list[Edit]:
        return _edits(module, kernel, kernel.loops[form - 1].node) if 0 < form <= len(kernel.loops) else []


def _edits(module: KernelModule, kernel: SourceKernel, loop: ast.For) -> list[Edit]:
    """Moves worth a rewrite; empty when there are none."""
    changing = names_written(loop)
    loads = _invariant_statements(kernel, loop, changing)
    if not any("tl.load" in spell(s) for s in loads):
        loads = []
    moved = {name for s in loads for name in names_written(s)}
    divisions = _divisions(loop.body, changing - moved)
    if len(loads) == len(loop.body) or (not loads and not divisions):
        return []
    before, edits, taken = [spell(s) for s in loads], [module.delete(s) for s in loads], set(kernel.names)
    reciprocals: dict[str, str] = {}
    for division in divisions:
        divisor = spell(division.right)
        if divisor not in reciprocals:
            name = reciprocals[divisor] = fresh_name(f"{root_of(division.right)}_reciprocal", taken)
            taken.add(name)
            before.append(f"{name} = 1.0 / {divisor}")
        swapped = ast.BinOp(division.left, ast.Mult(), ast.Name(reciprocals[divisor], ast.Load()))
        edits.append(module.replace(division, spell(swapped)))
    return [module.insert_before(loop, "\n".join(before)), *edits]


def _divisions(body: Sequence[ast.stmt], changing: set[str]) -> list[ast.BinOp]:
    """Divisions of something that changes by a name that does not, none inside another. What an `if` holds stays there:
    outside, the divisor may be None."""
    found, inside = [], set()
    for statement in body:
        for part in ast.walk(statement) if not isinstance(statement, ast.If) else ():
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and id(part) not in inside:
                steady = root_of(part.right) is not None and not names_read(part.right) & changing
                if steady and names_read(part.left) & changing and not isinstance(part.left, ast.Constant):
                    found.append(part)
                    inside |= {id(p) for p in ast.walk(part)}
    return found


def _invariant_statements(kernel: SourceKernel, loop: ast.For, changing: set[str]) -> list[ast.stmt]:
    """Assignments of the loop's own suite that give the same value each time, in order."""
    stored = {a.base for a in kernel.accesses if a.kind != "load"}
    loaded = {id(a.call): a.base for a in kernel.accesses if a.kind == "load"}
    varying, found, written = set(changing), [], list[str]()
    for statement in loop.body:
        written += sorted(names_written(statement))
    for position, statement in enumerate(loop.body):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name = statement.targets[0].id
        once = len(kernel.definitions.get(name, ())) == 1 and written.count(name) == 1
        early = any(name in names_read(s) for s in loop.body[:position])
        calls = [p for p in ast.walk(statement) if isinstance(p, ast.Call)]
        clean = all(id(c) not in loaded or (loaded[id(c)] and not stored & {loaded[id(c)], None}) for c in calls)
        atomic = any(called(c).startswith(("tl.atomic", "tl.store", "tl.rand")) for c in calls)
        if once and not early and clean and not atomic and not names_read(statement) & varying:
            found.append(statement)
            varying.discard(name)
    return found


CONTRACTION_STAGES = 4  # the launch default is 3, for loops with dots only
ROW_STAGES = 2


class SoftwarePipeline(GridRewrite):
    """Innermost loops that load become `tl.range(..., num_stages=STAGES)`: the compiler prefetches with cp.async."""

    name, family, lacks = "software-pipeline", "pipeline", "has no innermost `range` loop that loads"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Loop]:
        """Innermost `range` loops that load from memory through pointers or descriptors."""
        outer = {id(node) for loop in kernel.loops for node in loop.outer}
        inner = [loop for loop in kernel.loops if loop.function == "range" and id(loop.node) not in outer]
        load = re.compile(r"tl\.load|.*_desc(_\d+)?\.load")
        launched = bool(module.launches_of(kernel.name))
        return [one for one in inner if launched and any(load.fullmatch(called(p)) for p in ast.walk(one.node))]

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: list[Loop]) -> str:
        knob = fresh_name("STAGES", module.names | kernel.names)
        edits = []
        for loop in found:
            assert isinstance(loop.node.iter, ast.Call)
            bounds = ", ".join(map(spell, loop.node.iter.args))
            edits.append(module.replace(loop.node.iter, f"tl.range({bounds}, num_stages={knob})"))
        edits.append(module.add_parameters(kernel.node, f"{knob}: tl.constexpr"))
        edits += [module.add_arguments(launch.call, f"{knob}={knob}") for launch in module.launches_of(kernel.name)]
        first = CONTRACTION_STAGES if contracts(kernel) else ROW_STAGES
        return module.edited(edits, module.set_constant(knob, first))
