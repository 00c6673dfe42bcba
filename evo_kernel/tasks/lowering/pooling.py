"""Pooling: every output walks over its window, in two or three dimensions (one is two, with one that stays put)."""

from __future__ import annotations

import math
from typing import Any

import torch

from evo_kernel.tasks.lowering.extremes import LARGER
from evo_kernel.tasks.lowering.frames import FrameRead, Index, write_map
from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.pointwise import compute_type
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten
AXES = ("depth", "row", "col")


@lowers(aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.avg_pool2d, aten.avg_pool3d)
def pool(module: LoweredModule, node: AtenNode) -> Any:
    """What lies outside counts as -inf (max) or 0 (average)."""
    largest = "max_pool" in node.operation
    dims = 3 if "3d" in node.operation else 2
    source = materialise(module, node.value(0))
    _refuse(source)
    window = node.window(1, dims)
    stride = node.window(2, dims, "stride") if node.argument(2, "stride") else window
    padding = node.window(3, dims, "padding", 0)
    dilation = node.window(4, dims, "dilation", 1) if largest else (1,) * dims
    ceil_mode = node.argument(5 if largest else 4, "ceil_mode", False)
    if largest and any(user.args[1] == 1 and user.users for user in node.fx.users):
        raise NotLowered("its indices as an output")
    count_padding = node.argument(5, "count_include_pad", True)
    divisor = None if largest else node.argument(6, "divisor_override", None)
    axes = AXES[-dims:]

    def compute(names: list[str]) -> tuple[list[str], str]:
        address, places = names[0], names[1 : 1 + dims]
        sizes, strides = names[1 + dims : 1 + 2 * dims], names[1 + 2 * dims :]
        edge = "float('-inf')" if largest else "0.0"
        lines = [f"total = tl.where(mask, {edge}, {edge})", "count = tl.where(mask, 0.0, 0.0)"]
        lines += [f"{'    ' * index}for {'ijk'[index]} in range({taps}):" for index, taps in enumerate(window)]
        steps = zip(axes, places, stride, padding, "ijk", dilation, strict=False)
        body = [f"at_{axis} = {at} * {s} - {pad} + {i} * {d}" for axis, at, s, pad, i, d in steps]
        inside = " & ".join(f"(at_{a} >= 0) & (at_{a} < {size})" for a, size in zip(axes, sizes, strict=True))
        body.append(f"inside = mask & {inside}")
        terms = [f"at_{axis} * {step}" for axis, step in zip(axes, strides, strict=True)]
        body.append(f"at = {' + '.join([address, *terms])}")
        body.append(f"value = tl.load(at, mask=inside, other={edge}).to(tl.float32)")
        body.append(f"total = {LARGER.of('total', 'value', torch.float32) if largest else 'total + value'}")
        counted = "inside"
        if count_padding:  # with ceil_mode a window may reach beyond the padding, where nothing counts
            counted = " & ".join(
                f"(at_{axis} < {size} + {pad})" for axis, size, pad in zip(axes, sizes, padding, strict=True)
            )
        body.append(f"count += tl.where({counted}, 1.0, 0.0)")
        lines += ["    " * dims + line for line in body]
        fixed = divisor or (math.prod(window) if count_padding and not ceil_mode else None)
        if largest or fixed:
            lines = [line for line in lines if "count" not in line]
        return lines, "total" if largest else f"total / {float(fixed)}" if fixed else "total / count"

    name = ("max_pool" if largest else "avg_pool") + ("_3d" if dims == 3 else "")
    out = _write(module, node, source, name, dims, [], compute)
    return (out, None) if largest else out


@lowers(aten._adaptive_avg_pool2d, aten._adaptive_avg_pool3d)
def adaptive_pool(module: LoweredModule, node: AtenNode) -> Any:
    """Output o averages inputs from floor(o·in/out) up to ceil((o+1)·in/out)."""
    dims = 3 if "3d" in node.operation else 2
    source = materialise(module, node.value(0))
    _refuse(source)
    out_sizes = [module.size(size) for size in LoweredValue.of("", node.result).shape[-dims:]]
    axes = AXES[-dims:]

    def compute(names: list[str]) -> tuple[list[str], str]:
        address, places = names[0], names[1 : 1 + dims]
        sizes, strides, outs = (names[1 + part * dims : 1 + (part + 1) * dims] for part in (1, 2, 3))
        lines = ["total = tl.where(mask, 0.0, 0.0)", "count = tl.where(mask, 0.0, 0.0)"]
        indent = ""
        for index, axis in enumerate(axes):
            place, size, out = places[index], sizes[index], outs[index]
            lines.append(f"{indent}first_{axis} = {place} * {size} // {out}")
            lines.append(f"{indent}last_{axis} = (({place} + 1) * {size} + {out} - 1) // {out}")
            lines.append(f"{indent}for {'ijk'[index]} in range(0, ({size} + {out} - 1) // {out} + 1):")
            indent += "    "
            lines.append(f"{indent}at_{axis} = first_{axis} + {'ijk'[index]}")
        inside = " & ".join(f"(at_{axis} < last_{axis})" for axis in axes)
        at = " + ".join([address, *(f"at_{axis} * {step}" for axis, step in zip(axes, strides, strict=True))])
        lines.append(f"{indent}inside = mask & {inside}")
        lines.append(f"{indent}total = total + tl.load({at}, mask=inside, other=0.0).to(tl.float32)")
        lines.append(f"{indent}count += tl.where(inside, 1.0, 0.0)")
        return lines, "total / tl.maximum(count, 1.0)"

    return _write(module, node, source, "adaptive_avg_pool", dims, out_sizes, compute)


def _write(
    module: LoweredModule, node: AtenNode, source: LoweredValue, name: str, dims: int, more: list[str], compute: Any
) -> LoweredValue:
    """A map over the outputs: the address of their image, their places, and sizes and strides of the source."""
    rank = len(source.shape)
    along = (*range(rank - dims), *((None,) * dims))
    reads: list[FrameRead | Index] = [FrameRead(source, along=along, load=False)]
    reads += [Index(dim) for dim in range(rank - dims, rank)]
    sizes = [module.size(size) for size in source.shape[-dims:]]
    strides = [f"{source.name}.stride({dim})" for dim in range(rank - dims, rank)]
    fake = node.result[0] if isinstance(node.result, tuple | list) else node.result
    return write_map(module, name, reads, [*sizes, *strides, *more], compute, module.empty(node.name, fake))


def _refuse(source: LoweredValue) -> None:
    if not compute_type(source.dtype).is_floating_point or source.dtype == torch.float64:
        raise NotLowered(f"pooling of {source.dtype}")
