"""Computes tensor maps (TMA descriptors) of host-side tensor descriptors, as Triton's own launcher encodes them.

Layout and constants: triton/backends/nvidia/driver.py and driver.c, 3.6 to 3.9. Limits: CUDA driver API,
cuTensorMapEncodeTiled. The geometry is computed and checked here without CUDA; `encode` calls the driver.
"""

from __future__ import annotations

from evo_kernel.fitness.plan.launch_plan import ITEM_BYTES, Descriptor, TensorMeta
from evo_kernel.fitness.runners import tensor_map_bytes
from evo_kernel.fitness.runners.faults import PlanFault
from evo_kernel.fitness.runners.tensor_map_bytes import NoTensorMap, TensorMap

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
