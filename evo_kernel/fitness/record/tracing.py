"""Builds a plan during recording: buffers of fake tensors, kernels, nodes and outputs.

Runs in the recorder's child. Fake CUDA tensors have shapes but no memory. torch_calls.py adds torch calls, launches.py
adds launches. The parent parses and validates the plan again.

Host code may read the values of host-known inputs and of what torch computes from them, and what it computes itself:
real CPU tensors are computed alongside the fake tensors that represent them. A GPU operation on such an input is
recorded as an operation. Only values computed by the host become a table of the plan.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.fitness.plan.launch_plan import MAX_NODES, MAX_TABLE_BYTES, closure

_WORDS = (torch.int64, torch.uint64)
ADDRESS_BITS = 40  # fake addresses: buffer number above, byte offset below; every buffer is 256-byte aligned and more


class RecordingRefused(Exception):
    """The candidate does something that a plan cannot represent. Becomes `status` with the message as its reason.

    `misfit`: the kernel that refuses its autotune configuration; Triton would choose among the others.
    """

    def __init__(self, reason: str, status: str = "rejected", misfit: str = "") -> None:
        super().__init__(reason)
        self.status, self.misfit = status, misfit


class NeedsBinary(Exception):
    """Host code reads a compiled kernel's resources: the parent must compile it and record again."""

    def __init__(self, kernel: dict[str, Any]) -> None:
        super().__init__("needs a compiled kernel")
        self.kernel = kernel


class PlanTracer:
    """The plan under construction, as JSON values; plan/launch_plan.py describes the fields."""

    def __init__(self, arch: int, resources: dict[str, Any]) -> None:
        self.arch, self.resources = arch, resources
        self.buffers: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self._storages: dict[int, int] = {}
        self._addressed: set[int] = set()  # buffers whose address host code has asked for
        self._tables: dict[int, set[int]] = {}  # by buffer that holds addresses, the buffers that these point into
        self._kept: list[Any] = []  # storages stay alive, so that no address is reused
        self.known = KnownValues()

    def add_input(self, tensor: torch.Tensor, host_value: torch.Tensor | None) -> dict[str, Any]:
        self._add_buffer(tensor, "input")
        if host_value is not None:
            self.known.set_input(tensor, host_value)
        return self.view(tensor)

    def view(self, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.is_neg() or tensor.is_conj():
            raise RecordingRefused("run uses a tensor that torch has yet to negate or conjugate; call resolve_neg()")
        return {
            "buffer": self._buffer(tensor),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": int(tensor.storage_offset()),
        }

    def address(self, tensor: torch.Tensor) -> int:
        self._addressed.add(self._buffer(tensor))
        return ((self._buffer(tensor) + 1) << ADDRESS_BITS) + offset_bytes(tensor)

    def table(self, view: dict[str, Any], value: torch.Tensor) -> dict[str, Any]:
        """The plan's node that writes `value` into `view`. Addresses that host code has asked for become relocations.

        Raises RecordingRefused for an address beside the tensor that it was made from.
        """
        with _disable_current_modes():
            flat = value.detach().contiguous().reshape(-1)
            relocations = [
                {"at": at, **place}
                for at, number in enumerate(flat.tolist() if self._addressed and value.dtype in _WORDS else ())
                if (place := self.place(number)) is not None
            ]
            flat = flat.clone() if relocations else flat
            for one in relocations:
                flat.view(torch.int64)[one["at"]] = 0
            data = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
        if relocations:
            self._tables.setdefault(view["buffer"], set()).update(one["target"] for one in relocations)
        node = {"kind": "constant", "view": view, "data": base64.b64encode(data).decode()}
        return {**node, "relocations": relocations} if relocations else node

    def place(self, number: Any) -> dict[str, int] | None:
        """Buffer and byte of an address that host code has asked for; None for other numbers. Raises as `table`."""
        if not isinstance(number, int):
            return None
        target = ((number + (1 << (ADDRESS_BITS - 1))) >> ADDRESS_BITS) - 1  # and no other one if it lies beside
        if target not in self._addressed:
            return None
        offset, size = number - ((target + 1) << ADDRESS_BITS), self.buffers[target]["bytes"]
        if not 0 <= offset <= size:
            raise RecordingRefused(
                f"run makes an address (data_ptr) {-offset if offset < 0 else offset - size} bytes "
                f"{'before' if offset < 0 else 'behind'} a tensor of {size} bytes: a table holds addresses within "
                "tensors. Add the offset in the kernel"
            )
        return {"target": target, "offset": offset}

    def pointer(self, value: Any) -> dict[str, Any]:
        """A pointer argument. The kernel may write there, so known values are dropped.

        `value`: a tensor or, as Triton takes it, another object with `data_ptr`: packages wrap tensors.
        """
        if isinstance(value, torch.Tensor):
            buffer, offset = self._buffer(value), offset_bytes(value)
        else:
            number, offset = divmod(value.data_ptr(), 1 << ADDRESS_BITS)
            if not 0 < number <= len(self.buffers):
                raise RecordingRefused(f"a kernel takes a {type(value).__name__} whose address lies in no tensor")
            buffer = number - 1
        for reached in closure({buffer}, self._tables):
            self.known.forget_storage(self._kept[reached]._cdata)
        return {"kind": "pointer", "buffer": buffer, "offset": offset}

    def kernel(self, spec: dict[str, Any]) -> int:
        """Index of a kernel in the plan."""
        if spec not in self.kernels:
            self.kernels.append(spec)
        return self.kernels.index(spec)

    def _buffer(self, tensor: torch.Tensor) -> int:
        known = self._storages.get(storage_key(tensor))
        return self._add_buffer(tensor, "scratch") if known is None else known

    def _add_buffer(self, tensor: torch.Tensor, kind: str) -> int:
        if tensor.device.type != "cuda":
            raise RecordingRefused(f"a tensor on {tensor.device} is used where the kernel needs one on the GPU")
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        self._storages[storage_key(tensor)] = len(self.buffers)
        self.buffers.append({"kind": kind, "bytes": int(storage.nbytes())})
        return len(self.buffers) - 1

    def note(self, node: dict[str, Any]) -> None:
        """Add a node. Raises RecordingRefused if the plan has MAX_NODES."""
        if len(self.nodes) >= MAX_NODES:
            raise RecordingRefused(
                f"run makes more than {MAX_NODES} launches, fills and torch calls: a plan holds no more"
            )
        views = [*node.get("views", ()), *node.get("outputs", ()), node.get("source"), node.get("target")]
        if any(view is not None and view["buffer"] in self._tables for view in views):
            raise RecordingRefused(
                "run copies a table of addresses (data_ptr) on the GPU, or computes with it: only kernels may take it. "
                "Make the table on the host, by torch.tensor([...], device=...)"
            )
        self.nodes.append(node)

    def finish(self, outputs: Any, may_be_none: bool) -> list[dict[str, Any]]:
        """Views of what `run` returned."""
        values = () if outputs is None and may_be_none else [outputs] if isinstance(outputs, torch.Tensor) else outputs
        if not isinstance(values, (tuple, list)) or not (values or may_be_none):
            raise RecordingRefused(
                f"run returned {type(outputs).__name__}; it must return a tensor or a tuple of tensors"
            )
        for value in values:
            if not isinstance(value, FakeTensor):
                raise RecordingRefused(
                    f"run returned a {type(value).__name__} among its outputs; only tensors can be judged"
                )
            if value.device.type != "cuda":
                raise RecordingRefused(f"run returned a tensor on {value.device}; outputs belong on the GPU", "wrong")
            if self._buffer(value) in self._tables:
                raise RecordingRefused("run returned a table of addresses (data_ptr): only kernels may take it")
        return [self.view(value) for value in values]


def offset_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


_HOST_BYTES = 1 << 20  # largest CPU tensor whose values are tracked


class KnownValues:
    """Real CPU tensors by the storage of the fake tensors that represent them."""

    def __init__(self) -> None:
        self._tables: dict[int, torch.Tensor] = {}
        self._inputs: dict[int, torch.Tensor] = {}

    def set_input(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        self._inputs[storage_key(tensor)] = value

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop the values of a tensor that a kernel or an operation may have written."""
        self.forget_storage(storage_key(tensor))

    def forget_storage(self, key: int) -> None:
        self._tables.pop(key, None)
        self._inputs.pop(key, None)

    def host(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's values, if host code may read them; None if only the GPU will know them."""
        known = self.table(tensor)
        return known if known is not None else _over(self._inputs.get(storage_key(tensor)), tensor)

    def table(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor's values, if host code alone determines them."""
        if type(tensor).__name__ != "FakeTensor":
            return tensor if tensor.device.type == "cpu" else None
        return _over(self._tables.get(storage_key(tensor)), tensor)

    def keep(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Record `value` as the content of the fake `tensor`."""
        if tensor.storage_offset() == 0:
            self._tables[storage_key(tensor)] = self.cast(value, tensor)

    @staticmethod
    def cast(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """`value` in the dtype, shape and strides of the fake `tensor`."""
        with _disable_current_modes():
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            return copy.copy_(value.detach())

    def compute(
        self, func: Any, args: tuple, kwargs: dict[str, Any], result: torch.Tensor, read: bool = False
    ) -> torch.Tensor | None:
        """The values of `result = func(*args)` if host code determines all of them, else None.

        `read`: of a result on the GPU, if host-known inputs determine them; host code may read these too.
        Results of random operations count as known: the plan keeps the values drawn while it was recorded.
        """
        tabled = result.device.type == "cuda" and not read
        if result.numel() * result.element_size() > (MAX_TABLE_BYTES if tabled else _HOST_BYTES):
            return None
        lookup = self.table if tabled else self.host
        try:
            with _disable_current_modes():
                named = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
                plain = _plain(args, lookup), _plain(named, lookup)
                plain[1].pop("pin_memory", None)
                computed = func(*plain[0], **plain[1])
        except (_Unknown, RuntimeError, TypeError, ValueError, NotImplementedError):
            return None
        return computed if isinstance(computed, torch.Tensor) and computed.shape == result.shape else None


class _Unknown(Exception):
    """An argument's values are not known on the host."""


def _plain(value: Any, lookup: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """`value` with fake tensors replaced by real ones. Raises _Unknown."""
    if isinstance(value, torch.Tensor):
        known = lookup(value)
        if known is None:
            raise _Unknown
        return known
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(item, lookup) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item, lookup) for key, item in value.items()}
    return torch.device("cpu") if isinstance(value, torch.device) else value


def number(value: torch.Tensor) -> bool | int | float:
    """The value of a real one-element tensor, read while fake tensor mode is active."""
    with _disable_current_modes():
        return value.item()


def storage_key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _over(base: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    if base is None or base.dtype != tensor.dtype:
        return None
    with _disable_current_modes():
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
