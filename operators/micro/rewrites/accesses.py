"""`drop-masks` and `cache-hints`: loads and stores without bounds checks that are true, and with hints for the caches.

`drop-masks`: where the block size divides the size, bounds checks are true and vanish.

`run` tells the kernel by a constexpr: `cols < n` becomes `(cols < n) | EVEN_N`, which the compiler folds to true (and
drops the mask with it) when EVEN_N is, and to the old check when it is not. Every size stays correct.

`cache-hints` says of loads and stores how soon their lines are needed again.

Results are not read back (`.cs`: stream); what another pass of the same program reads again should stay
(`evict_last`), and go after its last use (`evict_first`); what every program reads (weights) should stay.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evo_kernel.types import TaskCard
from operators.micro.host_code import launches_for
from operators.micro.kernels import Access, SourceKernel, SourceLaunch
from operators.micro.module import Edit, KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.grids import followed
from operators.micro.syntax import fresh_name, names_read, spell, substitute


@dataclass(frozen=True, eq=False)
class MaskBound:
    """A comparison `offsets < size` that is true for all lanes whenever `block` divides `size` (or covers it)."""

    node: ast.Compare
    size: str  # parameter
    block: str  # parameter
    whole: bool  # one block over everything: true only when size reaches block


class DropMasks(Rewrite):
    name, family = "drop-masks", "memory"
    lacks = "has no bounds check that is known to hold when its block divides the size"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[MaskBound]:
        return _bounds(module, kernel)

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: list[MaskBound]) -> bool:
        return _holds_somewhere(module, task, kernel, found)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: list[MaskBound]) -> str:
        taken, flags, edits = set(kernel.names), {}, []
        for bound in found:
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
        return module.edited(edits)


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
    for statement, inside in _with_suites(kernel):
        done = {id(p.left) for p in ast.walk(statement) if _is_flagged(p)}  # type: ignore[attr-defined]
        for node in ast.walk(statement):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
                size = node.comparators[0]
                if id(node) not in done and isinstance(size, ast.Name) and size.id in scalars:
                    bound = _bound(kernel, launches, node, size.id, inside)
                    found += [bound] if bound is not None else []
    return [b for b in found if all({b.size, b.block} <= set(launch.arguments) for launch in launches)]


def _is_flagged(node: ast.AST) -> bool:
    is_or = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    return is_or and isinstance(node.right, ast.Name) and node.right.id.startswith("EVEN_")  # type: ignore[union-attr]


def _with_suites(kernel: SourceKernel) -> list[tuple[ast.stmt, tuple[list[ast.stmt], ...]]]:
    """Simple statements with the suites around them, innermost last."""
    found = []

    def visit(body: list[ast.stmt], suites: tuple[list[ast.stmt], ...]) -> None:
        for statement in body:
            if isinstance(statement, ast.For | ast.If | ast.While):
                visit(statement.body, (*suites, statement.body))
                visit(statement.orelse, (*suites, statement.orelse))
            else:
                found.append((statement, suites))

    visit(kernel.body, (kernel.body,))
    return found


def _bound(
    kernel: SourceKernel,
    launches: tuple[SourceLaunch, ...],
    node: ast.Compare,
    size: str,
    suites: tuple[list[ast.stmt], ...],
) -> MaskBound | None:
    terms = _terms(_resolved(kernel, node.left, suites))
    ranges = [t for t in terms if t.startswith("tl.arange(0, ")]
    if len(ranges) != 1:
        return None
    block, rest = ranges[0].removeprefix("tl.arange(0, ").removesuffix(")"), [t for t in terms if t != ranges[0]]
    if block not in kernel.constexprs or len(rest) > 1:
        return None
    if not rest:
        return MaskBound(node, size, block, True)
    loops = {loop.target: loop for loop in kernel.loops if any(loop.node.body is suite for suite in suites)}
    loop = loops.get(rest[0])
    if loop is not None and [spell(x) for x in (loop.start, loop.stop, loop.step)] == ["0", size, block]:
        return MaskBound(node, size, block, False)
    for axis in range(3):
        if rest[0] in (f"tl.program_id({axis}) * {block}", f"tl.program_id(axis={axis}) * {block}"):
            fits = all(_grid_fits(launch, axis, size, block) for launch in launches)
            return MaskBound(node, size, block, False) if fits else None
    return None


def _grid_fits(launch: SourceLaunch, axis: int, size: str, block: str) -> bool:
    """Whether the grid has no program beyond the size."""
    if axis >= len(launch.grid) or not {size, block} <= set(launch.arguments):
        return False
    return spell(launch.grid[axis]) == f"triton.cdiv({spell(launch.arguments[size])}, {spell(launch.arguments[block])})"


def _resolved(kernel: SourceKernel, node: ast.expr, suites: tuple[list[ast.stmt], ...]) -> ast.expr:
    """The expression with names replaced by what the suites around it assign to them, where that is clear."""
    targets, line = {loop.target for loop in kernel.loops}, node.lineno
    for _ in range(8):
        known = {}
        for name in names_read(node) - targets:
            for suite in reversed(suites):
                values = [s.value for s in suite if isinstance(s, ast.Assign) and spell(s.targets[0]) == name]
                others = [s for s in kernel.definitions.get(name, ()) if not isinstance(s, ast.Assign)]
                clear = len(values) == 1 and not others and name not in names_read(values[0])
                if clear and _last_before(kernel, name, values[0], line):
                    known[name] = values[0]
                    break
        if not known:
            return node
        node = substitute(node, known)
    return node


def _last_before(kernel: SourceKernel, name: str, value: ast.expr, line: int) -> bool:
    """Whether this is the assignment that a line further down sees."""
    lines = [place.lineno for place in kernel.definitions[name] if place.lineno <= line]
    return value.lineno <= line and len(lines) > 0 and max(lines) <= value.lineno


def _terms(node: ast.expr) -> list[str]:
    """The terms of a sum, without the `[:, None]` that only shape them."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [spell(node)]


def _holds_somewhere(module: KernelModule, task: TaskCard, kernel: SourceKernel, bounds: list[MaskBound]) -> bool:
    """Whether some case's sizes divide, as far as can be told."""
    seen = [one for one in launches_for(module, task) if one.launch.kernel == kernel.name]
    for one in seen:
        for bound in bounds:
            size, block = one.values.get(bound.size), one.values.get(bound.block)
            if not isinstance(size, int) or not isinstance(block, int) or not block:
                return True
            if (size >= block) if bound.whole else size % block == 0:
                return True
    return not seen


class CacheHints(Rewrite):
    name, family, form = "cache-hints", "memory", "on"
    lacks = "has a hint at every access already"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        return ("loads", "stores")

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        return _hints(module, kernel, form or "stores")


def _hints(module: KernelModule, kernel: SourceKernel, kind: str) -> list[Edit]:
    if kind == "stores":
        plain = [a for a in kernel.accesses if a.kind == "store" and not _hinted(a)]
        return [module.add_arguments(a.call, "cache_modifier='.cs'") for a in plain]
    edits = []
    for access in kernel.accesses:
        # Whether a whole block is read: a hint on a single number changes nothing
        if (
            access.kind == "load"
            and access.base is not None
            and not _hinted(access)
            and "arange" in _closure(kernel, access.pointer)
        ):
            policy = "evict_first" if _last_use(kernel, access) else "evict_last"
            edits.append(module.add_arguments(access.call, f"eviction_policy='{policy}'"))
    return edits


def _hinted(access: Access) -> bool:
    return any(k.arg in ("eviction_policy", "cache_modifier", "volatile") for k in access.call.keywords)


def _last_use(kernel: SourceKernel, access: Access) -> bool:
    """Whether this program reads the line for the last time, and no other program wants it."""
    same = [a for a in kernel.accesses if a.kind == "load" and a.base == access.base]
    own = "program_id" in _closure(kernel, access.pointer)
    in_dot = bool(kernel.calls("tl.dot"))
    return own and not in_dot and same[-1] is access


def _closure(kernel: SourceKernel, node: ast.AST) -> set[str]:
    """Attribute names (`arange`, `program_id`) that an address is computed with, through every definition."""
    parts = (p for part in followed(kernel, node) for p in ast.walk(part))
    return {part.attr for part in parts if isinstance(part, ast.Attribute)}
