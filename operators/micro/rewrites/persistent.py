"""Persistent grid: as many programs as the GPU holds at once, each looping over tiles."""

from __future__ import annotations

import textwrap

from evo_kernel.types import Strategy, TaskCard
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import RewriteFailed, kernel_of, kernel_region
from operators.micro.rewrites.grids import (
    axis_calls,
    body_text,
    contracts,
    device_of,
    fresh_names,
    grid_launches,
    has_plain_axes,
    origins,
    plain_statements,
    product,
    served_kernels,
    set_grid,
    written_parameters,
)
from operators.micro.syntax import fresh_name, spell, statements

CONTRACTION_PROGRAMS = 4  # programs a multiprocessor, first value: large tiles of a contraction fill its shared memory
ROW_PROGRAMS = 8


class Persistent:
    """The grid becomes min(programs, tiles); the kernel's body becomes the body of a loop over tiles."""

    name = "persistent"

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        return [
            Strategy(self.name, "launch", kernel_region(kernel.name))
            for kernel in served_kernels(module)
            if _refusal(module, kernel) is None
        ]

    def apply(self, module: KernelModule, strategy: Strategy) -> str:
        kernel = kernel_of(module, strategy)
        if (reason := _refusal(module, kernel)) is not None:
            raise RewriteFailed(f"{kernel.name} {reason}")
        renumbered, tile, tiles = _renumber(module, kernel)
        changed = KernelModule.parse(renumbered)
        body = changed.kernels[kernel.name].body
        loop = f"for {tile} in range(tl.program_id(0), {tiles}, tl.num_programs(0)):\n"
        inner = textwrap.indent(body_text(changed, body), "    ")
        return changed.edited(changed.replace_range(body[0], body[-1], loop + inner))


def _refusal(module: KernelModule, kernel: SourceKernel) -> str | None:
    launches = grid_launches(module, kernel)
    if not launches:
        return "is not launched on a plain tuple grid"
    if not has_plain_axes(kernel) or not plain_statements(kernel.body):
        return "leaves early, or holds statements that cannot be looped over"
    if not axis_calls(kernel, "tl.program_id"):
        return "does not ask for its program index"
    if written_parameters(kernel):
        return "changes its parameters in place, which a second tile would see"
    if any(_strides_over_grid(kernel, loop.node.iter) for loop in kernel.loops):
        return "already loops over tiles"
    if any(device_of(module, launch) is None for launch in launches):
        return "has no tensor argument to ask for its device"
    return None


def _strides_over_grid(kernel: SourceKernel, iterator: object) -> bool:
    """Whether a loop starts at the program index and steps by the number of programs."""
    return "tl.num_programs(" in spell(iterator) and "program_id(0)" in origins(kernel, iterator)  # type: ignore[arg-type]


def _renumber(module: KernelModule, kernel: SourceKernel) -> tuple[str, str, str]:
    """Program indices computed from one tile number; the launches with their new grid."""
    rank = len(module.launches_of(kernel.name)[0].grid)
    tile, tiles = kernel.fresh("tile_id"), kernel.fresh("num_tiles")
    counts = fresh_names(kernel, [f"tiles_{axis}" for axis in range(rank)]) if rank > 1 else [tiles]
    alone = {id(value) for value in (getattr(s, "value", None) for s in statements(kernel.body)) if value is not None}
    edits = [
        module.replace(call, _index(tile, counts, axis, id(call) in alone))
        for call, axis in axis_calls(kernel, "tl.program_id")
    ]
    edits += [module.replace(call, counts[axis]) for call, axis in axis_calls(kernel, "tl.num_programs")]
    edits.append(module.add_parameters(kernel, ", ".join([*counts[: rank if rank > 1 else 0], tiles])))
    knob = fresh_name("PROGRAMS_PER_SM", module.names | kernel.names)
    sms, host_tiles = module.fresh("num_sms"), module.fresh("num_tiles")
    for launch in module.launches_of(kernel.name):
        total = product(launch.grid)
        device = device_of(module, launch)
        properties = f"{sms} = torch.cuda.get_device_properties({device}).multi_processor_count"
        edits.append(module.insert_before(launch.statement, f"{properties}\n{host_tiles} = {total}"))
        edits.append(set_grid(module, launch, [f"min({sms} * {knob}, {host_tiles})"]))
        values = [f"{name}={spell(part)}" for name, part in zip(counts, launch.grid, strict=True)] if rank > 1 else []
        edits.append(module.add_arguments(launch.call, ", ".join([*values, f"{tiles}={host_tiles}"])))
    first = CONTRACTION_PROGRAMS if contracts(kernel) else ROW_PROGRAMS
    return module.edited(edits, module.set_constant(knob, first)), tile, tiles


def _index(tile: str, counts: list[str], axis: int, alone: bool) -> str:
    """The index along one axis; axis 0 runs fastest, as it does on the GPU."""
    if len(counts) == 1:
        return tile
    below = " // ".join([tile, *counts[:axis]])
    text = below if axis == len(counts) - 1 else f"{below} % {counts[axis]}"
    return text if alone else f"({text})"
