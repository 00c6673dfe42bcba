"""Encodes tensor maps (TMA) as the 128 bytes of a kernel parameter.

Needs ctypes only: exported packages include this file.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

MAP_BYTES = 128
_SMALL_BYTES = 128 << 10
_MENDED_DRIVER = 13010  # newer drivers encode small tensors correctly


class TensorMap(NamedTuple):
    """Arguments of cuTensorMapEncodeTiled. Sizes are innermost first; strides in bytes, without the innermost."""

    type: int
    item_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    nan_fill: bool

    @property
    def reach_bytes(self) -> int:
        """Offset of the last byte of the tensor."""
        strides = (self.item_bytes, *self.strides)
        return sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True)) + 1


class NoTensorMap(ValueError):
    """The GPU does not support such a map."""


def encode(found: TensorMap, address: int, driver_version: int) -> bytes:
    """Encode a map for a kernel's `__grid_constant__` parameter. Raises NoTensorMap.

    Calls the driver library directly: the result must be aligned to 64 bytes, which cuda-bindings does not guarantee.
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
        (ctypes.c_uint64 * rank)(*found.strides, outermost),  # the last one is not read
        (ctypes.c_uint32 * rank)(*found.box),
        (ctypes.c_uint32 * rank)(*(1 for _ in found.shape)),
        ctypes.c_int(0),  # CU_TENSOR_MAP_INTERLEAVE_NONE
        ctypes.c_int(found.swizzle),
        ctypes.c_int(2),  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
        ctypes.c_int(1 if found.nan_fill else 0),  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA or NONE
    )
    if code != 0:
        raise NoTensorMap(f"the GPU has no tensor map like {found} (CUDA error {code})")
    return mended(ctypes.string_at(place, MAP_BYTES), found, driver_version)


def mended(encoded: bytes, found: TensorMap, driver_version: int) -> bytes:
    """Clear a bit that drivers up to 13.1 set wrongly for tensors below 128 KB, as CUTLASS and Triton from 3.7 do."""
    if driver_version > _MENDED_DRIVER or found.reach_bytes >= _SMALL_BYTES:
        return encoded
    words = bytearray(encoded)
    words[8 + 2] &= ~(1 << 5) & 0xFF  # bit 21 of the second 64-bit word, little-endian
    return bytes(words)
