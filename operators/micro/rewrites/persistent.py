"""Persistent grid: as many programs as the GPU holds at once, each looping over tiles."""

from __future__ import annotations

import textwrap

from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import (
    GridRewrite,
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
    set_grid,
    written_parameters,
)
from operators.micro.syntax import fresh_name, spell, statements

CONTRACTION_PROGRAMS = 4  # programs a multiprocessor, first value: large tiles of a contraction fill its shared memory
ROW_PROGRAMS = 8


class Persistent(GridRewrite):
    """The grid becomes min(programs, tiles); the kernel's body becomes the body of a loop over tiles."""

    name, family = "persistent", "launch"
    lacks = (
        "needs a plain tuple grid, program indices that it asks for and does not leave early by, parameters that it "
        "does not change, no loop over tiles yet, and a tensor to ask for its device"
    )

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> bool:
        return (
            bool(grid_launches(module, kernel))
            and has_plain_axes(kernel)
            and plain_statements(kernel.body)
            and bool(axis_calls(kernel, "tl.program_id"))
            and not written_parameters(kernel)
            and not any(_strides_over_grid(kernel, loop.node.iter) for loop in kernel.loops)
            and all(device_of(module, launch) is not None for launch in module.launches_of(kernel.name))
        )

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: bool) -> str:
        renumbered, tile, tiles = _renumber(module, kernel)
        changed = KernelModule.parse(renumbered)
        body = changed.kernels[kernel.name].body
        loop = f"for {tile} in range(tl.program_id(0), {tiles}, tl.num_programs(0)):\n"
        inner = textwrap.indent(body_text(changed, body), "    ")
        return changed.edited(changed.replace_range(body[0], body[-1], loop + inner))


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
    edits.append(module.add_parameters(kernel.node, ", ".join([*counts[: rank if rank > 1 else 0], tiles])))
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
