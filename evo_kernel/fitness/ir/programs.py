"""Executes launches of exported programs from their IR on a CPU; export/shipped/_launch.py uses it where installed.

A launch's parameters (bytes, addresses, tensor maps) are decoded into arguments of the IR's parameters, so wrong
parameters are detected. Nothing is compared or timed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evo_kernel.fitness.ir.execute import launch as launch_ir
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.module import IRModule, IRValue
from evo_kernel.fitness.ir.nodes import mark_addresses
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.ir.types import IRError
from evo_kernel.fitness.plan.launch_plan import ITEM_BYTES, Arg, Constant, Descriptor, Pointer, Scalar

_FLOATS = {"f32": "<f", "f64": "<d", "f16": "<e"}
_TF32 = 11  # CUtensorMapDataType


def address(buffers: Sequence[torch.Tensor], number: int) -> int:
    """The address that a buffer has while a launch is executed."""
    del buffers
    return DeviceMemory.address(number)


def launch(
    code: Mapping[str, Any],
    node: Mapping[str, Any],
    buffers: Sequence[torch.Tensor],
    nodes: Sequence[Mapping[str, Any]],
) -> None:
    """Execute one launch of a case with these nodes.

    Raises NotImplementedError if only a GPU can, RuntimeError if the launch has a finding.
    """
    if code["language"] == "cuda":
        raise NotImplementedError(f"only a GPU executes {code['language']} ({code['symbol']})")
    try:
        _launch(code, node, buffers, nodes)
    except IRError as error:
        raise NotImplementedError(f"only a GPU executes {code['symbol']}: {error}") from error


def _launch(
    code: Mapping[str, Any],
    node: Mapping[str, Any],
    buffers: Sequence[torch.Tensor],
    nodes: Sequence[Mapping[str, Any]],
) -> None:
    module = parse(code["ir"])
    memory = DeviceMemory()
    for data in buffers:
        memory.add(data.numel(), defined=True)
        memory.buffers[-1].data.copy_(data)
    for table in (Constant.model_validate(other) for other in nodes if other.get("relocations")):
        buffer = memory.buffers[table.view.buffer]
        mark_addresses(buffer, table, buffer.targets.union(one.target for one in table.relocations))
    grid = (node["grid"][0] // code["cluster"], *node["grid"][1:])
    launched = launch_ir(module, grid, _arguments(module, node["parameters"]), memory)
    if launched.finding is not None:
        raise RuntimeError(launched.finding.sentence)
    for data, buffer in zip(buffers, memory.buffers, strict=True):
        data.copy_(buffer.data)


def _arguments(module: IRModule, given: Sequence[Any]) -> list[Arg]:
    """Arguments without the two pointers to scratch at the end, which the IR lacks."""
    slots = iter(given[:-2])
    parameters = iter(module.entry.arguments)
    arguments: list[Arg] = []
    for parameter in parameters:
        slot = next(slots)
        if parameter.type.element == "desc":
            descriptor = _descriptor(parameter, slot)
            arguments.append(descriptor)
            for _ in range(2 * len(descriptor.shape)):  # the same sizes and strides again, as numbers
                next(slots)
                next(parameters)
        elif parameter.type.element == "ptr":
            buffer, offset = slot
            arguments.append(Pointer(buffer=buffer, offset=offset))
        else:
            arguments.append(_scalar(parameter, bytes.fromhex(slot)))
    if next(slots, None) is not None:
        raise IRError("the launch passes more than the kernel takes")
    return arguments


def _scalar(parameter: IRValue, data: bytes) -> Scalar:
    type_ = parameter.type
    if len(data) != type_.item_bytes:
        raise IRError(f"the launch passes {len(data)} bytes where the kernel takes {type_}")
    if type_.is_integer:
        return Scalar(type=f"i{type_.bits}", value=int.from_bytes(data, "little", signed=type_.bits > 1))
    if type_.element == "bf16":
        return Scalar(type="bf16", value=struct.unpack("<f", b"\0\0" + data)[0])
    return Scalar(type=f"fp{type_.bits}", value=struct.unpack(_FLOATS[type_.element], data)[0])


def _descriptor(parameter: IRValue, slot: Any) -> Descriptor:
    tensor_map = slot["map"]
    buffer, offset = slot["place"]
    assert parameter.type.pointee is not None
    dtype = str(parameter.type.pointee.dtype).removeprefix("torch.")
    item = ITEM_BYTES[dtype]
    return Descriptor(
        buffer=buffer,
        offset=offset,
        dtype=dtype,  # pyright: ignore[reportArgumentType]  one of them
        shape=tuple(reversed(tensor_map["shape"])),
        strides=(*(stride // item for stride in reversed(tensor_map["strides"])), 1),
        block=parameter.type.pointee.shape or (),
        padding="nan" if tensor_map["nan_fill"] else "zero",
        round_tf32=tensor_map["type"] == _TF32,
    )
