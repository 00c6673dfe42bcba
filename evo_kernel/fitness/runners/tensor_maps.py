"""Tensor maps (TMA descriptors) for host-side tensor descriptors, as Triton's own launcher encodes them.

Layout and constants: triton/backends/nvidia/driver.py and driver.c, 3.6 to 3.9. Limits: CUDA driver API,
cuTensorMapEncodeTiled. The geometry is worked out and bounded here without CUDA; only `encode` calls the driver.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from evo_kernel.fitness.plan import ITEM_BYTES, Descriptor, TensorMeta
from evo_kernel.fitness.runners.faults import PlanFault

MAP_BYTES = 128
_HOST_TYPE = {8: 10, 9: 8, 10: 9}  # the device numbers three types otherwise than CUtensorMapDataType
_TF32 = 11
_TYPE_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}  # CUtensorMapDataType
_SWIZZLE_BYTES = {1: 32, 2: 64, 3: 128}
_SMALL_BYTES = 128 << 10
_MENDED_DRIVER = 13010  # newer drivers encode small tensors right


@dataclass(frozen=True)
class TensorMap:
    """Arguments of cuTensorMapEncodeTiled. Sizes are innermost first; strides are bytes, the innermost left out."""

    type: int
    item_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    nan_fill: bool

    @property
    def reach_bytes(self) -> int:
        """Offset of the last byte that is inside."""
        strides = (self.item_bytes, *self.strides)
        return sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True)) + 1


def tensor_map(arg: Descriptor, meta: TensorMeta, address: int) -> TensorMap:
    """The map that a compiled kernel wants for a descriptor. Raises PlanFault where the hardware has no such map."""
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
    """The 128 bytes that a kernel takes as its `__grid_constant__` parameter. Raises PlanFault.

    Called in the driver's library itself: the driver wants the result aligned to 64 bytes, which an object of
    cuda-bindings need not be.
    """
    rank = len(found.shape)
    outermost = found.shape[-1] * (found.strides[-1] if found.strides else found.item_bytes)
    store = ctypes.create_string_buffer(2 * MAP_BYTES)
    place = (ctypes.addressof(store) + MAP_BYTES - 1) // MAP_BYTES * MAP_BYTES
    code = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        ctypes.c_int(found.type),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*found.shape),
        (ctypes.c_uint64 * rank)(*found.strides, outermost),  # the last is not read
        (ctypes.c_uint32 * rank)(*found.box),
        (ctypes.c_uint32 * rank)(*(1 for _ in found.shape)),
        ctypes.c_int(0),  # CU_TENSOR_MAP_INTERLEAVE_NONE
        ctypes.c_int(found.swizzle),
        ctypes.c_int(2),  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
        ctypes.c_int(1 if found.nan_fill else 0),  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA or NONE
    )
    if code != 0:
        raise PlanFault(f"the GPU has no tensor map like {found} (CUDA error {code})")
    return mended(ctypes.string_at(place, MAP_BYTES), found, driver_version)


def mended(encoded: bytes, found: TensorMap, driver_version: int) -> bytes:
    """Clear a bit that drivers up to 13.1 set wrongly for tensors below 128 KB (as CUTLASS and Triton from 3.7 do)."""
    if driver_version > _MENDED_DRIVER or found.reach_bytes >= _SMALL_BYTES:
        return encoded
    words = bytearray(encoded)
    words[8 + 2] &= ~(1 << 5) & 0xFF  # bit 21 of the second 64-bit word, little-endian
    return bytes(words)
