"""Packs a launch's arguments as bytes, in the order of the compiled code's parameters.

A Triton or Gluon kernel takes the parameters of its signature, then pointers to global and profile scratch. A host-side
tensor descriptor becomes its 128-byte tensor map, shape (i32) and strides (i64). If the kernel was compiled without
tensor maps, it becomes base, shape, strides, flags, and again shape and strides; there is one flag (NaN padding) in
Triton 3.6 and two (and TF32 rounding) from 3.7. Sources: triton/backends/nvidia/driver.py 3.6 to 3.9,
triton/backends/driver.py 3.8 and 3.9. A CUDA C++ kernel takes its own parameters only.

Tensor maps (TMA descriptors) are those of Triton's own launcher. Limits: CUDA driver API, cuTensorMapEncodeTiled. Their
geometry is computed and checked here without CUDA; `encode` calls the driver.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass

from evo_kernel.fitness.plan.launch_plan import (
    ITEM_BYTES,
    Binary,
    Descriptor,
    Kernel,
    Launch,
    Pointer,
    Scalar,
    TensorMeta,
)
from evo_kernel.fitness.runners import tensor_map_bytes
from evo_kernel.fitness.runners.cuda_memory import Arena
from evo_kernel.fitness.runners.launch_limits import PlanFault
from evo_kernel.fitness.runners.tensor_map_bytes import NoTensorMap, TensorMap

_WHOLE = {"i1": "<?", "u1": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
          "i64": "<q", "u64": "<Q"}  # fmt: skip
GLOBAL_SCRATCH, PROFILE_SCRATCH = -1, -2
MAP_BYTES = 128


@dataclass(frozen=True)
class ParameterPlace:
    """An address: a byte of one of the plan's buffers, or of the launch's GLOBAL_SCRATCH or PROFILE_SCRATCH."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class Mapped:
    """The tensor map of a descriptor."""

    descriptor: Descriptor
    meta: TensorMeta


Slot = bytes | ParameterPlace | Mapped


def slots(kernel: Kernel, binary: Binary, launch: Launch) -> list[Slot]:
    """Parameters of one launch before buffers have addresses.

    Raises PlanFault if their sizes differ from the cubin's.
    """
    kinds = [kind for _, kind in kernel.signature]
    scratch = [] if kernel.language == "cuda" else [ParameterPlace(GLOBAL_SCRATCH), ParameterPlace(PROFILE_SCRATCH)]
    descriptors = sum(isinstance(arg, Descriptor) for arg in launch.args)
    if binary.tensordesc_meta and len(binary.tensordesc_meta) != descriptors:
        raise PlanFault(
            f"kernel {kernel.name} takes {len(binary.tensordesc_meta)} tensor maps, {descriptors} are passed"
        )
    metas = iter(binary.tensordesc_meta)
    found: list[Slot] = []
    for kind, arg in zip(kinds, launch.args, strict=True):
        if isinstance(arg, Descriptor):
            meta = next(metas, None)
            flags = _flags(binary, launch, len(scratch))
            found += _plain_descriptor(arg, flags) if meta is None else [Mapped(arg, meta), *_extent(arg)]
        elif isinstance(arg, Pointer):
            found.append(ParameterPlace(arg.buffer, arg.offset))
        else:
            found.append(scalar(kind, arg))
    found += scratch
    sizes = [_size(slot) for slot in found]
    if binary.parameter_bytes and sizes != list(binary.parameter_bytes):
        raise PlanFault(
            f"kernel {kernel.name} takes parameters of {list(binary.parameter_bytes)} bytes, the plan passes {sizes}"
        )
    return found


def _size(slot: Slot) -> int:
    if isinstance(slot, bytes):
        return len(slot)
    return 8 if isinstance(slot, ParameterPlace) else MAP_BYTES


def pack(
    kernel: Kernel,
    binary: Binary,
    launch: Launch,
    arena: Arena,
    scratch: tuple[int, int],
    tensor_map: Callable[[Descriptor, TensorMeta, int], bytes],
) -> list[bytes]:
    """Parameters of one launch as bytes. `scratch`: addresses of global and profile scratch, or 0. Raises PlanFault."""
    values: list[bytes] = []
    for slot in slots(kernel, binary, launch):
        if isinstance(slot, bytes):
            values.append(slot)
        elif isinstance(slot, Mapped):
            base = arena.address(slot.descriptor.buffer) + slot.descriptor.offset
            values.append(tensor_map(slot.descriptor, slot.meta, base))
        else:
            own = slot.buffer < 0
            address = scratch[-1 - slot.buffer] if own else arena.address(slot.buffer) + slot.offset
            values.append(struct.pack("<Q", address))
    return values


def scalar(kind: str, arg: Scalar) -> bytes:
    """A number as kernel parameter; floating-point values are rounded as in C. Raises PlanFault."""
    if arg.type in ("fp16", "bf16"):
        narrow = struct.pack("<f", ctypes.c_float(arg.value).value)
        if arg.type == "bf16":
            return narrow[2:]
    try:
        if arg.type in ("fp32", "f32"):
            return struct.pack("<f", ctypes.c_float(arg.value).value)
        if arg.type in ("fp64", "f64"):
            return struct.pack("<d", float(arg.value))
        return struct.pack("<e" if arg.type == "fp16" else _WHOLE[arg.type], arg.value)
    except (struct.error, OverflowError, TypeError) as error:
        raise PlanFault(f"the value {arg.value} does not fit {kind}: {error}") from error


def _flags(binary: Binary, launch: Launch, own: int) -> int:
    """Number of flags of a descriptor without a tensor map, from the number of parameters in the cubin."""
    ranks = [len(arg.shape) for arg in launch.args if isinstance(arg, Descriptor)]
    others = len(launch.args) - len(ranks) + own
    left = len(binary.parameter_bytes) - others - sum(1 + 4 * rank for rank in ranks)
    return left // len(ranks) if left in (len(ranks), 2 * len(ranks)) else 1


def _plain_descriptor(arg: Descriptor, flags: int) -> list[Slot]:
    wide = [struct.pack("<q", number) for number in (*arg.shape, *arg.strides)]
    marks = [struct.pack("<?", arg.padding == "nan"), struct.pack("<?", arg.round_tf32)]
    return [ParameterPlace(arg.buffer, arg.offset), *wide, *marks[:flags], *_extent(arg)]


def _extent(arg: Descriptor) -> list[bytes]:
    if any(size >= 1 << 31 for size in arg.shape):
        raise PlanFault(f"a tensor descriptor has sizes {arg.shape}; a kernel takes them as 32-bit numbers")
    return [*(struct.pack("<i", size) for size in arg.shape), *(struct.pack("<q", stride) for stride in arg.strides)]


_HOST_TYPE = {8: 10, 9: 8, 10: 9}  # three types are numbered differently on the device and in CUtensorMapDataType
_TF32 = 11
_TYPE_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}  # CUtensorMapDataType
_SWIZZLE_BYTES = {1: 32, 2: 64, 3: 128}


def tensor_map(arg: Descriptor, meta: TensorMeta, address: int) -> TensorMap:
    """The map that a compiled kernel needs for a descriptor. Raises PlanFault if the hardware does not support it."""
    if meta.is_im2col:
        raise PlanFault("im2col tensor descriptors are not launched: use a tiled one")
    rank = len(arg.shape)
    if not 1 <= rank <= 5 or len(arg.strides) != rank or len(meta.block_size) != rank:
        raise PlanFault(
            f"a descriptor of {rank} sizes is passed for one of {len(meta.block_size)}; there can be 1 to 5"
        )
    if meta.elem_size != ITEM_BYTES[arg.dtype]:
        raise PlanFault(f"a descriptor of {arg.dtype} is passed where the kernel takes {meta.elem_size}-byte elements")
    if arg.strides[-1] != 1:
        raise PlanFault("the last dimension of a tensor descriptor must be contiguous")
    kind = _TF32 if arg.round_tf32 else _HOST_TYPE.get(meta.elem_type, meta.elem_type)
    sizes = (*arg.shape[:-1], arg.shape[-1] * (2 if meta.fp4_padded else 1))
    found = TensorMap(
        type=kind,
        item_bytes=meta.elem_size,
        shape=tuple(reversed(sizes)),
        strides=tuple(meta.elem_size * stride for stride in reversed(arg.strides[:-1])),
        box=tuple(reversed(meta.block_size)),
        swizzle=meta.swizzle,
        nan_fill=arg.padding == "nan",
    )
    _check(found, address, meta.fp4_padded)
    return found


def _check(found: TensorMap, address: int, packed: bool) -> None:
    if address % 16:
        raise PlanFault(f"the base of a tensor descriptor must be aligned to 16 bytes; it lies {address % 16} past one")
    if any(not 1 <= size <= 1 << 32 for size in found.shape):
        raise PlanFault(f"a tensor descriptor has sizes {found.shape[::-1]}; each must be 1 to 2**32")
    if any(stride % 16 or not 0 <= stride < 1 << 40 for stride in found.strides):
        raise PlanFault(f"strides of a tensor descriptor must be multiples of 16 bytes; they are {found.strides[::-1]}")
    inner = found.box[0] * found.item_bytes
    if inner % 16 and not packed:
        raise PlanFault(f"the innermost row of a descriptor's block has {inner} bytes; it must be a multiple of 16")
    if inner > _SWIZZLE_BYTES.get(found.swizzle, inner) and not packed:
        raise PlanFault(f"a row of {inner} bytes is wider than its swizzle of {_SWIZZLE_BYTES[found.swizzle]}")
    if not packed and _TYPE_BYTES.get(found.type) != found.item_bytes:
        raise PlanFault(f"element type {found.type} of a tensor map does not have {found.item_bytes} bytes")


def encode(found: TensorMap, address: int, driver_version: int) -> bytes:
    """See tensor_map_bytes.encode. Raises PlanFault."""
    try:
        return tensor_map_bytes.encode(found, address, driver_version)
    except NoTensorMap as error:
        raise PlanFault(str(error)) from error
