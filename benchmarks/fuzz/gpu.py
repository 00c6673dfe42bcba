"""Cubins on a GPU through the driver API: one launch of a program, twice, over guarded buffers."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

from benchmarks.fuzz.stored import Case
from evo_kernel.tasks.helper_process import answer_requests

_GUARD = 256  # bytes between buffers, and their alignment
_ARENA = 64 << 20
_SCALARS = {"i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q",
            "fp32": "<f", "fp64": "<d"}  # fmt: skip
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaError(Exception):
    """The driver refuses, or a kernel failed: then the process is of no more use."""


class Gpu:
    """A context with one allocation."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(_ARENA))
        self._base = pointer.value

    def run(self, case: Case) -> list[bytes]:
        """Contents of the outputs. Raises CudaError; ValueError where a launch is not what a program promises."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = case.code
        assert code
        self._call("cuModuleLoadData", ctypes.byref(module), code.cubin)
        try:
            self._call("cuModuleGetFunction", ctypes.byref(function), module, code.symbol.encode())
            if code.shared_bytes > 48 << 10:
                self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, code.shared_bytes)
            first = self._launch(case, function)
            if first != self._launch(case, function):
                raise ValueError("two launches differ")
            return first
        finally:
            self._cuda.cuModuleUnload(module)

    def _launch(self, case: Case, function: ctypes.c_void_p) -> list[bytes]:
        image, starts = _image([recipe.bytes() for recipe in case.buffers])
        code = case.code
        assert code
        scratch = self._base + _up(len(image), 1 << 16)
        if scratch - self._base + code.scratch_bytes * math.prod(case.grid) > _ARENA:
            raise ValueError("too much scratch")
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(self._base), image, ctypes.c_size_t(len(image)))
        values = [
            struct.pack("<Q", self._base + starts[arg[0]] + arg[1])
            if isinstance(arg, tuple)
            else struct.pack(_SCALARS[kind], arg)
            for kind, arg in zip(case.kinds, case.args, strict=True)
        ]
        values += [struct.pack("<Q", scratch), struct.pack("<Q", 0)]
        holders = [ctypes.create_string_buffer(value, len(value)) for value in values]
        table = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(holder) for holder in holders))
        shape = (*case.grid, code.threads, 1, 1, code.shared_bytes)
        self._call("cuLaunchKernel", function, *(ctypes.c_uint(n) for n in shape), None, table, None)
        self._call("cuCtxSynchronize")
        after = ctypes.create_string_buffer(len(image))
        self._call("cuMemcpyDtoH_v2", after, ctypes.c_uint64(self._base), ctypes.c_size_t(len(image)))
        return _outputs(case, image, after.raw, starts)

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._cuda, name)(*args)
        if code:
            raise CudaError(f"{name}: error {code}")


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _image(contents: list[bytes]) -> tuple[bytes, list[int]]:
    """All buffers with guards around them, and where each begins."""
    image, starts = bytearray(b"\xa7" * _GUARD), []
    for content in contents:
        starts.append(len(image))
        image += content
        image += b"\xa7" * (_up(len(image), _GUARD) + _GUARD - len(image))
    return bytes(image), starts


def _outputs(case: Case, before: bytes, after: bytes, starts: list[int]) -> list[bytes]:
    found, same = [], bytearray(after)
    for output in case.outputs:
        start, recipe = starts[output.buffer], case.buffers[output.buffer]
        end = start + len(recipe.bytes())
        found.append(after[start:end])
        same[start:end] = before[start:end]
    if bytes(same) != before:
        raise ValueError("it writes outside of its outputs")
    return found


def child() -> None:
    """The process that owns the GPU: results of a case, or what is wrong."""
    gpu = Gpu()

    def answer(case: Case) -> tuple[list[bytes] | None, str]:
        try:
            return gpu.run(case), ""
        except (CudaError, ValueError) as error:
            return None, f"{type(error).__name__}: {error}"

    answer_requests(answer)
