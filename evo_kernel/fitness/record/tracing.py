"""Builds a plan during recording: buffers of fake tensors, kernels, nodes and outputs.

Runs in the recorder's child. Fake CUDA tensors have shapes but no memory. torch_calls.py adds torch calls, launches.py
adds launches. The parent parses and validates the plan again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from evo_kernel.fitness.plan.launch_plan import MAX_NODES
from evo_kernel.fitness.record.host_values import KnownValues, storage_key

ADDRESS_BITS = 40  # fake addresses: buffer number above, byte offset below; every buffer is 256-byte aligned and more


class RecordingRefused(Exception):
    """The candidate does something that a plan cannot represent. Becomes `status` with the message as its reason."""

    def __init__(self, reason: str, status: str = "rejected") -> None:
        super().__init__(reason)
        self.status = status


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
        self._kept: list[Any] = []  # storages stay alive, so that no address is reused
        self.known = KnownValues()

    def add_input(self, tensor: torch.Tensor, host_value: torch.Tensor | None) -> dict[str, Any]:
        self._add_buffer(tensor, "input")
        if host_value is not None:
            self.known.set_input(tensor, host_value)
        return self.view(tensor)

    def view(self, tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "buffer": self._buffer(tensor),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": int(tensor.storage_offset()),
        }

    def address(self, tensor: torch.Tensor) -> int:
        return ((self._buffer(tensor) + 1) << ADDRESS_BITS) + offset_bytes(tensor)

    def pointer(self, tensor: torch.Tensor) -> dict[str, Any]:
        """A pointer argument. The kernel may write there, so known values are dropped."""
        self.known.forget(tensor)
        return {"kind": "pointer", "buffer": self._buffer(tensor), "offset": offset_bytes(tensor)}

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
        self.nodes.append(node)

    def finish(self, outputs: Any) -> list[dict[str, Any]]:
        """Views of what `run` returned."""
        values = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        if not isinstance(values, (tuple, list)) or not values:
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
        return [self.view(value) for value in values]


def offset_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()
