"""Program-order swizzle: tiles that share operands run close together in time, so that the second read hits L2."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import (
    GridRewrite,
    axis_calls,
    grid_launches,
    grid_text,
    grouped,
    has_plain_axes,
    origins,
    product,
)
from operators.micro.syntax import fresh_name, spell

GROUP = 8  # tiles along the first axis that one group spans: the knob's first value

_ORDER = """\
{group} = {knob} * {n}
{first} = {tile} // {group} * {knob}
{height} = tl.minimum({m} - {first}, {knob})
{out_m} = {first} + {tile} % {group} % {height}
{out_n} = {tile} % {group} // {height}"""


@dataclass(frozen=True)
class _Divided:
    """A tile number that the kernel itself splits: `m = tile // width`, `n = tile % width`."""

    first: ast.Assign
    second: ast.Assign
    width: str
    tiles: str  # how many tiles there are


class Swizzle(GridRewrite):
    """Grouped order over a two-dimensional tile grid. Right for any grid: it only permutes the programs."""

    name, family, lacks = "swizzle", "launch", "has no two-dimensional tile grid whose operands are shared"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> tuple[int | None, _Divided | None] | None:
        grouped_already = any(name.startswith("GROUP") for name in kernel.constexprs)
        if grouped_already or not grid_launches(module, kernel) or not has_plain_axes(kernel):
            return None
        axis, divided = _axes(module, kernel), _divided(kernel)
        return (axis, divided) if axis is not None or divided is not None else None

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: tuple[int | None, _Divided | None]) -> str:
        axis, divided = found
        if axis is not None:
            return _flatten(module, kernel, axis)
        assert divided is not None
        return _reorder(module, kernel, divided)


def _shares_operands(kernel: SourceKernel, m: str, n: str, stop: frozenset[str] = frozenset()) -> bool:
    """Whether one load moves with the first coordinate only, and another with the second only."""
    loads = [origins(kernel, a.pointer, stop) for a in kernel.accesses if a.kind == "load"]
    return any(m in s and n not in s for s in loads) and any(n in s and m not in s for s in loads)


def _axes(module: KernelModule, kernel: SourceKernel) -> int | None:
    """The first of two neighbouring grid axes whose programs share operands."""
    launches = grid_launches(module, kernel)
    rank = len(launches[0].grid) if launches else 0
    for axis in range(rank - 1):
        if _shares_operands(kernel, f"program_id({axis})", f"program_id({axis + 1})"):
            return axis
    return None


def _flatten(module: KernelModule, kernel: SourceKernel, axis: int) -> str:
    """Two grid axes become one, walked in groups."""
    names: list[str] = []
    for wish in ("tile", "tile_0", "tile_1", "tiles_0", "tiles_1"):
        names.append(kernel.fresh(wish, *names))
    tile, tile_m, tile_n, tiles_m, tiles_n = names
    knob = _knob(module, kernel)
    order = _order(kernel, knob, tile, (tiles_m, tiles_n), (tile_m, tile_n))
    first = kernel.body[0]
    edits = [module.insert_before(first, f"{tile} = tl.program_id({axis})\n{order}")]
    for function, own in (("tl.program_id", (tile_m, tile_n)), ("tl.num_programs", (tiles_m, tiles_n))):
        for call, at in axis_calls(kernel, function):
            if at in (axis, axis + 1):
                edits.append(module.replace(call, own[at - axis]))
            elif at > axis:
                edits.append(module.replace(call, f"{function}({at - 1})"))
    edits.append(module.add_parameters(kernel.node, f"{tiles_m}, {tiles_n}, {knob}: tl.constexpr"))
    for launch in module.launches_of(kernel.name):
        grid = [spell(part) for part in launch.grid]
        pair = launch.grid[axis : axis + 2]
        assert isinstance(launch.call.func, ast.Subscript)
        changed = grid_text([*grid[:axis], product(pair), *grid[axis + 2 :]])
        edits.append(module.replace(launch.call.func.slice, changed))
        counts = f"{tiles_m}={spell(pair[0])}, {tiles_n}={spell(pair[1])}"
        edits.append(module.add_arguments(launch.call, f"{counts}, {knob}={knob}"))
    return module.edited(edits, module.set_constant(knob, GROUP))


def _knob(module: KernelModule, kernel: SourceKernel) -> str:
    return fresh_name("GROUP_M", module.names | kernel.names)


def _order(kernel: SourceKernel, knob: str, tile: str, tiles: tuple[str, str], outs: tuple[str, str]) -> str:
    names = {
        "group": kernel.fresh("group_tiles"),
        "first": kernel.fresh("group_first"),
        "height": kernel.fresh("group_height"),
    }
    return _ORDER.format(knob=knob, tile=tile, m=tiles[0], n=tiles[1], out_m=outs[0], out_n=outs[1], **names)


def _tile_counts(kernel: SourceKernel) -> dict[str, str]:
    """Spelling of a tile number → spelling of the number of tiles: the program index, or a loop that starts at it."""
    counts = {"tl.program_id(0)": "tl.num_programs(0)"}
    for loop in kernel.loops:
        if spell(loop.start) == "tl.program_id(0)" and spell(loop.step) == "tl.num_programs(0)":
            counts[loop.target] = spell(loop.stop)
    for name in kernel.definitions:
        value = kernel.value_of(name)
        if value is not None and spell(value) in counts:
            counts[name] = counts[spell(value)]
    return counts


def _divided(kernel: SourceKernel) -> _Divided | None:
    """`m = tile // width` and `n = tile % width` in one suite, with operands shared between tiles."""
    counts = _tile_counts(kernel)
    for suite in [kernel.body, *[loop.node.body for loop in kernel.loops]]:
        halves: dict[tuple[str, str], dict[type, ast.Assign]] = {}
        for statement in suite:
            value = statement.value if isinstance(statement, ast.Assign) else None
            if not isinstance(value, ast.BinOp) or spell(value.left) not in counts:
                continue
            if isinstance(value.op, ast.FloorDiv | ast.Mod):
                key = (spell(value.left), grouped(value.right))
                halves.setdefault(key, {})[type(value.op)] = statement  # type: ignore[assignment]
        for (tile, width), pair in halves.items():
            if len(pair) == 2:
                divided = _Divided(pair[ast.FloorDiv], pair[ast.Mod], width, counts[tile])
                m, n = spell(divided.first.targets[0]), spell(divided.second.targets[0])
                single = kernel.value_of(m) is not None and kernel.value_of(n) is not None
                shared = _shares_operands(kernel, m, n, frozenset((m, n)))
                if single and shared and _other_uses(kernel, divided) is not None:
                    return divided
    return None


def _other_uses(kernel: SourceKernel, divided: _Divided) -> list[ast.expr] | None:
    """Where else the tile number is read, always after it was split (None: before that): another kernel may find its
    tiles by that number, so those places must see the number of the tile that is computed."""
    aliases = _tile_counts(kernel)
    own = {id(part) for s in (divided.first, divided.second) for part in ast.walk(s)}
    for name in aliases:
        value = kernel.value_of(name)
        own |= {id(part) for part in ast.walk(value)} if value is not None and spell(value) in aliases else set()
    own |= {id(part) for loop in kernel.loops for part in ast.walk(loop.node.iter)}
    found: list[ast.expr] = []
    found += [p for p in ast.walk(kernel.node) if isinstance(p, ast.Name | ast.Call) and id(p) not in own]
    uses = [p for p in found if spell(p) in aliases and not (isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store))]
    last = max(divided.first.lineno, divided.second.lineno)
    return uses if all(use.lineno > last for use in uses) else None


def _reorder(module: KernelModule, kernel: SourceKernel, divided: _Divided) -> str:
    """The kernel's own split of its tile number, in grouped order."""
    knob, tiles_m = _knob(module, kernel), kernel.fresh("tiles_0")
    assert isinstance(divided.first.value, ast.BinOp)
    outs = (spell(divided.first.targets[0]), spell(divided.second.targets[0]))
    order = _order(kernel, knob, spell(divided.first.value.left), (tiles_m, divided.width), outs)
    earlier, later = sorted((divided.first, divided.second), key=lambda s: s.lineno)
    text = f"{tiles_m} = {divided.tiles} // {divided.width}\n{order}"
    edits = [module.replace(earlier, text), module.delete(later)]
    number = f"({outs[0]} * {divided.width} + {outs[1]})"
    edits += [module.replace(use, number) for use in _other_uses(kernel, divided) or []]
    edits.append(module.add_parameters(kernel.node, f"{knob}: tl.constexpr"))
    edits += [module.add_arguments(launch.call, f"{knob}={knob}") for launch in module.launches_of(kernel.name)]
    return module.edited(edits, module.set_constant(knob, GROUP))
