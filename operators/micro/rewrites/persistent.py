"""`persistent`: as many programs as the GPU holds, each looping over the tiles that programs were for.

The whole body goes into a loop; what asked for the program's index asks for the tile's. A guard `if c: return`
becomes the other branch of the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression, parse_module
from evo_kernel.types import TaskCard
from operators.micro.host_code import launches_for, live_kernels
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import GridRewrite, grid_launches, product
from operators.micro.syntax import argument, called, fresh_name, int_value, mapped, names_read, spell

PER_SM = 4
MULTIPROCESSORS = 132  # of an H100 or H200
WAITS = ("atomic_cas", "atomic_xchg", "num_programs")
"""A program that waits for another may wait for one that has not begun; one that counts programs may loop already."""


@dataclass(frozen=True)
class _Loop:
    body: list[ast.stmt]
    tiles: str  # parameter: how many there are
    sizes: tuple[str, ...]  # parameters: the grid's axes but the last
    launches: tuple[SourceLaunch, ...]


class Persistent(GridRewrite):
    name, family = "persistent", "launch"
    lacks = "waits for other programs, loops over tiles already, or returns in the middle"

    def kernels(self, module: KernelModule, task: TaskCard) -> list[SourceKernel]:
        live = {kernel.name for kernel in live_kernels(module, task)}
        return [kernel for kernel in super().kernels(module, task) if kernel.name in live]

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> _Loop | None:
        launches, calls = grid_launches(module, kernel), _calls(kernel, "program_id")
        rank = len(launches[0].grid) if launches else 0
        axes = [_axis(call) for call in calls]
        if not axes or any(axis is None or axis >= rank for axis in axes):
            return None
        waits = _calls(kernel, *WAITS) or any(isinstance(part, ast.While) for part in ast.walk(kernel.node))
        if waits or _asks_elsewhere(module, kernel):
            return None
        body = _without_returns(list(kernel.body))
        if body is None or any(isinstance(part, ast.Return | ast.AnnAssign) for s in body for part in ast.walk(s)):
            return None
        taken = set(kernel.names)
        names = [fresh_name(wish, taken) for wish in ("tiles", *[f"grid_{axis}" for axis in range(rank - 1)])]
        return _Loop(_in_loop(kernel, body, names[0], names[1:], rank), names[0], tuple(names[1:]), launches)

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: _Loop) -> bool:
        """Whether some case has more programs than fit, as far as can be told."""
        counts = [_count(one.grid) for one in launches_for(module, task, kernel)]
        return not counts or any(count is None or count > MULTIPROCESSORS * PER_SM for count in counts)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: _Loop) -> str:
        knob = module.fresh(f"{kernel.name.removesuffix('_kernel').strip('_').upper()}_PROGRAMS_PER_SM")
        text = "\n".join(map(spell, found.body))
        edits = [
            module.replace_range(kernel.body[0], kernel.body[-1], text),
            module.add_parameters(kernel.node, ", ".join([found.tiles, *found.sizes])),
            module.set_constant(knob, PER_SM),
        ]
        for launch in found.launches:
            assert isinstance(launch.call.func, ast.Subscript)
            tiles = product(launch.grid)
            resident = f"torch.cuda.get_device_properties().multi_processor_count * {knob}"
            given = [f"{found.tiles}={tiles}"]
            given += [f"{name}={spell(size)}" for name, size in zip(found.sizes, launch.grid, strict=False)]
            edits.append(module.replace(launch.call.func.slice, f"(min({tiles}, {resident}),)"))
            edits.append(module.add_arguments(launch.call, ", ".join(given)))
        return module.edited(edits)


def _calls(kernel: SourceKernel, *names: str) -> list[ast.Call]:
    """Calls of functions of these names, Triton's or those of a library around it."""
    parts = [part for part in ast.walk(kernel.node) if isinstance(part, ast.Call)]
    return [part for part in parts if called(part).split(".")[-1] in names]


def _axis(call: ast.Call) -> int | None:
    return int_value(argument(call, "axis", 0))


def _count(grid: Sequence[object]) -> int | None:
    count = 1
    for size in grid:
        if not isinstance(size, int):
            return None
        count *= size
    return count


def _asks_elsewhere(module: KernelModule, kernel: SourceKernel) -> bool:
    """Whether a device function that the kernel calls asks for the program's index, or waits."""
    todo, seen = [kernel], {kernel.name}
    while todo:
        for name, device in module.kernels.items():
            if name not in seen and any(names_read(one.node) & {name} for one in todo):
                seen.add(name)
                todo.append(device)
                if _calls(device, "program_id", *WAITS):
                    return True
        todo.pop(0)
    return False


def _without_returns(body: list[ast.stmt]) -> list[ast.stmt] | None:
    """A suite in which `if c: ...; return` is `if c: ... else:` the rest; None where it returns in other places."""
    for position, statement in enumerate(body):
        match statement:
            case ast.If(test=test, body=[*before, ast.Return(value=None)], orelse=[]):
                rest = _without_returns(body[position + 1 :])
                if rest is None or not rest:
                    return None
                if before:
                    return [*body[:position], ast.If(test, before, rest)]
                return [*body[:position], ast.If(ast.UnaryOp(ast.Not(), test), rest, [])]
            case ast.Return():
                return body[:position] if statement.value is None and position == len(body) - 1 else None
            case _ if any(isinstance(part, ast.Return) for part in ast.walk(statement)):
                return None
    return body


def _in_loop(kernel: SourceKernel, body: list[ast.stmt], tiles: str, sizes: Sequence[str], rank: int) -> list[ast.stmt]:
    """The loop over tiles. A parameter that the body assigns starts anew in each step, under another name."""
    taken = kernel.names | {tiles, *sizes}
    tile = fresh_name("tile", taken)
    starts = {name: fresh_name(f"{name}_of_tile", taken) for name in kernel.definitions if name in _parameters(kernel)}
    indices = _indices(tile, sizes, rank)

    def change(part: ast.AST) -> ast.AST | None:
        if isinstance(part, ast.Call) and called(part).split(".")[-1] == "program_id":
            index = indices[_axis(part) or 0]
            # A library's own function of this name (FlagGems) gives 64 bits.
            return parse_expression(index if called(part) == "tl.program_id" else f"{index}.to(tl.int64)")
        if isinstance(part, ast.Name) and part.id in starts:
            return ast.Name(starts[part.id], part.ctx)
        return None

    lines = [f"{new} = {name}" for name, new in starts.items()]
    changed = [mapped(statement, change) for statement in body]
    head = parse_module(f"for {tile} in range(tl.program_id(0), {tiles}, tl.num_programs(0)):\n    pass").body[0]
    assert isinstance(head, ast.For)
    head.body = [*[parse_module(line).body[0] for line in lines], *changed]
    return [head]


def _indices(tile: str, sizes: Sequence[str], rank: int) -> list[str]:
    """The index along each axis of the grid that a tile had."""
    found, left = [], tile
    for axis in range(rank):
        found.append(f"({left} % {sizes[axis]})" if axis < rank - 1 else f"({left})" if "//" in left else left)
        if axis < rank - 1:
            left = f"{left} // {sizes[axis]}"
    return found


def _parameters(kernel: SourceKernel) -> set[str]:
    return {parameter.name for parameter in kernel.parameters}
