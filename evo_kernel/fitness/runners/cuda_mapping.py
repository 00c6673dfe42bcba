"""Isolated device memory: mapped at a random address, with nothing mapped for a gigabyte on either side.

A kernel that accesses memory far outside its buffers then faults; it cannot find the judge's memory or leave data for
its next launch. Mapping and unmapping take milliseconds, so unused memory is reused, as it is mapped, for plans that
need the same size. Source: CUDA driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import contextlib
import secrets
import weakref
from typing import Any

import torch
from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports]

from evo_kernel.fitness.runners.cuda_driver import ok
from evo_kernel.fitness.runners.faults import CudaFault

_GAP_BYTES = 1 << 30
_PLACES = (1 << 41, 1 << 46)  # range of requested addresses; the driver chooses others if these are taken
_OUT_OF_MEMORY = 2  # CUresult
_UNUSED_BYTES = 4 << 30  # most bytes that stay mapped for reuse


class _Mapped:
    """Memory in the form that torch needs to make a tensor, which keeps it alive."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


class Mappings:
    """Mapped memory of torch's current GPU. For one thread.

    Memory without references is reused for requests of the same size. It is unmapped when there is too much of it, or
    in `collect`, but never immediately: unmapping waits for the GPU, which is not allowed during graph capture.
    """

    def __init__(self) -> None:
        self._device = torch.cuda.current_device()
        self._kind = cuda.CUmemAllocationProp()
        self._kind.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._kind.location = self._place()
        least = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._page_bytes = int(ok(cuda.cuMemGetAllocationGranularity(self._kind, least)))
        self._unused: list[tuple[int, int, Any]] = []  # (address, bytes, handle), latest last
        self.bytes = 0  # mapped, used or not

    @property
    def unused_bytes(self) -> int:
        return sum(size for _, size, _ in self._unused)

    def memory(self, size: int) -> torch.Tensor:
        """A mapping of at least `size` bytes as uint8, with its last user's content. Raises torch.OutOfMemoryError."""
        size = -(-size // self._page_bytes) * self._page_bytes
        for place in reversed(range(len(self._unused))):
            if self._unused[place][1] == size:
                return self._lent(*self._unused.pop(place))
        if self.unused_bytes > _UNUSED_BYTES:
            self.collect()
        return self._lent(*self._mapped(size))

    def collect(self) -> None:
        """Unmap unused memory."""
        if not self._unused:
            return
        torch.cuda.synchronize()
        while self._unused:
            address, size, handle = self._unused.pop()
            self.bytes -= size
            ok(cuda.cuMemUnmap(address, size))
            ok(cuda.cuMemRelease(handle))
            ok(cuda.cuMemAddressFree(address - _GAP_BYTES, size + 2 * _GAP_BYTES))

    def _lent(self, address: int, size: int, handle: Any) -> torch.Tensor:
        mapped = _Mapped(address, size)
        weakref.finalize(mapped, self._unused.append, (address, size, handle)).atexit = False
        return torch.as_tensor(mapped, device=torch.device("cuda", self._device))

    def _mapped(self, size: int) -> tuple[int, int, Any]:
        handle = self._created(size)
        low, high = (place // self._page_bytes for place in _PLACES)
        hint = (low + secrets.randbelow(high - low)) * self._page_bytes
        address = int(ok(cuda.cuMemAddressReserve(size + 2 * _GAP_BYTES, 0, hint, 0))) + _GAP_BYTES
        ok(cuda.cuMemMap(address, size, 0, handle, 0))
        access = cuda.CUmemAccessDesc()
        access.location = self._place()
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ok(cuda.cuMemSetAccess(address, size, [access], 1))
        self.bytes += size
        return address, size, handle

    def _created(self, size: int) -> Any:
        with contextlib.suppress(CudaFault):
            return ok(cuda.cuMemCreate(size, self._kind, 0))
        self.collect()
        torch.cuda.empty_cache()
        try:
            return ok(cuda.cuMemCreate(size, self._kind, 0))
        except CudaFault as fault:
            if fault.code == _OUT_OF_MEMORY:
                raise torch.OutOfMemoryError(f"CUDA out of memory: tried to allocate {size} bytes") from fault
            raise

    def _place(self) -> Any:
        place = cuda.CUmemLocation()
        place.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = self._device
        return place
