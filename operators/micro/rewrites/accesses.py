"""`drop-masks` and `cache-hints`: loads and stores without bounds checks that are true, and with hints for the caches.

`drop-masks`: where the block size divides the size, bounds checks are true and vanish.

`run` tells the kernel by a constexpr: `cols < n` becomes `(cols < n) | EVEN_N`, which the compiler folds to true (and
drops the mask with it) when EVEN_N is, and to the old check when it is not. Every size stays correct. Another form
tells the compiler the sizes themselves, where indices are divided by them.

`cache-hints` says of loads and stores how soon their lines are needed again.

Results are not read back (`.cs`: stream); what another pass of the same program reads again should stay
(`evict_last`), and go after its last use (`evict_first`); what every program reads (weights) should stay.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression
from evo_kernel.types import TaskCard
from operators.micro.host_code import launches_for
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.grids import followed
from operators.micro.rewrites.indices import Reader, bound_of, inlined
from operators.micro.rewrites.sizes import constant_sizes
from operators.micro.syntax import fresh_name, spell, statements
from operators.micro.text import Edit


@dataclass(frozen=True, eq=False)
class MaskBound:
    """A comparison `offsets < size` that is true for all lanes whenever `block` divides `size` (or covers it)."""

    node: ast.Compare
    size: str  # parameter
    block: str  # parameter
    whole: bool  # one block over everything: true only when size reaches block


CONSTANT, ALL_CONSTANT = "as constants", "all as constants"
"""The forms that tell the compiler sizes: those that indices are divided by; where there are none, all and strides."""


class DropMasks(Rewrite):
    name, family, form = "drop-masks", "memory", "sizes"
    lacks = "has no bounds check that is known to hold when its block divides the size, and divides no indices by sizes"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        return ("", CONSTANT, ALL_CONSTANT)

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[MaskBound] | list[Edit]:
        if not form:
            return _bounds(module, kernel)
        return constant_sizes(module, kernel, every=form == ALL_CONSTANT)

    def pays(
        self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: list[MaskBound] | list[Edit]
    ) -> bool:
        """Whether some case's sizes divide, as far as can be told; constants always pay."""
        bounds = [one for one in found if isinstance(one, MaskBound)]
        if not bounds:
            return True
        seen = launches_for(module, task, kernel)
        for one in seen:
            for bound in bounds:
                size, block = one.values.get(bound.size), one.values.get(bound.block)
                if not isinstance(size, int) or not isinstance(block, int) or not block:
                    return True
                if (size >= block) if bound.whole else size % block == 0:
                    return True
        return not seen

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: list[MaskBound] | list[Edit]) -> str:
        edits = [one for one in found if isinstance(one, Edit)]
        bounds = [one for one in found if isinstance(one, MaskBound)]
        return module.edited(edits or self._without_masks(module, kernel, bounds))

    def _without_masks(self, module: KernelModule, kernel: SourceKernel, bounds: list[MaskBound]) -> list[Edit]:
        taken, flags, edits = set(kernel.names), {}, []
        for bound in bounds:
            key = (bound.size, bound.block, bound.whole)
            if key not in flags:
                flags[key] = fresh_name(f"EVEN_{bound.size.upper()}", taken)
                taken.add(flags[key])
            edits.append(module.replace(bound.node, f"(({spell(bound.node)}) | {flags[key]})"))
        edits.append(module.add_parameters(kernel.node, ", ".join(f"{flag}: tl.constexpr" for flag in flags.values())))
        for launch in module.launches_of(kernel.name):
            given = {name: spell(value) for name, value in launch.arguments.items()}
            told = [f"{flag}={condition(given[s], given[b], whole)}" for (s, b, whole), flag in flags.items()]
            edits.append(module.add_arguments(launch.call, ", ".join(told)))
        return edits


def condition(size_text: str, block_text: str, whole: bool) -> str:
    """What `run` tells of two expressions: whether the block divides the size or, where it is `whole`, fits into it."""
    if whole:
        return f"{size_text} >= {block_text}"
    return f"({size_text}) % {block_text} == 0" if not size_text.isidentifier() else f"{size_text} % {block_text} == 0"


def _bounds(module: KernelModule, kernel: SourceKernel) -> list[MaskBound]:
    launches = module.launches_of(kernel.name)
    if not launches or any(isinstance(p, ast.Return) for p in ast.walk(kernel.node)):
        return []
    scalars = {p.name for p in kernel.parameters if p.kind != "pointer"} - set(kernel.definitions)
    found = []
    for statement in statements(kernel.body):
        if isinstance(statement, ast.For | ast.If | ast.While):
            continue
        parts = list(ast.walk(statement))
        ors = [p for p in parts if isinstance(p, ast.BinOp) and isinstance(p.op, ast.BitOr)]
        done = {id(p.left) for p in ors if spell(p.right).startswith("EVEN_") or bound_of(p) is not p}
        for node in parts:
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
                size = spell(node.comparators[0])
                if (
                    id(node) not in done
                    and size in scalars
                    and (bound := _bound(kernel, launches, statement, node, size))
                ):
                    found.append(bound)
    return [b for b in found if all({b.size, b.block} <= set(launch.arguments) for launch in launches)]


def _bound(
    kernel: SourceKernel, launches: tuple[SourceLaunch, ...], statement: ast.stmt, node: ast.Compare, size: str
) -> MaskBound | None:
    index = Reader(kernel, statement).block(node.left)
    if index is None or index.size not in kernel.constexprs or len(index.offset) > 1:
        return None
    block = index.size
    if not index.offset:
        return MaskBound(node, size, block, True)
    for loop in kernel.loops:
        if loop.target == index.start and any(part is statement for part in ast.walk(loop.node)):
            passes = [spell(x) for x in (loop.start, loop.stop, loop.step)] == ["0", size, block]
            return MaskBound(node, size, block, False) if passes else None
    start = spell(inlined(kernel, parse_expression(index.start)))
    for axis in range(3):
        if start in (f"tl.program_id({axis}) * {block}", f"tl.program_id(axis={axis}) * {block}"):
            fits = all(_grid_fits(launch, axis, size, block) for launch in launches)
            return MaskBound(node, size, block, False) if fits else None
    return None


def _grid_fits(launch: SourceLaunch, axis: int, size: str, block: str) -> bool:
    """Whether the grid has no program beyond the size."""
    if axis >= len(launch.grid) or not {size, block} <= set(launch.arguments):
        return False
    return spell(launch.grid[axis]) == f"triton.cdiv({spell(launch.arguments[size])}, {spell(launch.arguments[block])})"


class CacheHints(Rewrite):
    name, family, form = "cache-hints", "memory", "on"
    lacks = "has a hint at every access already"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        return ("loads", "stores")

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        hints, edits = {"eviction_policy", "cache_modifier", "volatile"}, []
        last = {access.base: access for access in kernel.accesses if access.kind == "load"}
        for access in kernel.accesses:
            if access.kind != (form or "stores").removesuffix("s") or hints & {k.arg for k in access.call.keywords}:
                continue
            if access.kind == "store":
                edits.append(module.add_arguments(access.call, "cache_modifier='.cs'"))
                continue
            # What the address is computed with, through every definition: `arange`, `program_id`.
            parts = (p for part in followed(kernel, access.pointer) for p in ast.walk(part))
            made_of = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            if access.base is None or "arange" not in made_of:  # a hint on a single number changes nothing
                continue
            # This program reads the line for the last time, and no other program wants it.
            over = "program_id" in made_of and not kernel.calls("tl.dot") and last[access.base] is access
            policy = "evict_first" if over else "evict_last"
            edits.append(module.add_arguments(access.call, f"eviction_policy='{policy}'"))
        return edits
