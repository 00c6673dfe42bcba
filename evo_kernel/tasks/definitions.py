"""A FlashInfer-Bench definition (axes, inputs, outputs, a reference `run`) and its workloads as a task's functions.

An input is drawn as its harness draws it (`random`), is a number (`scalar`), or is read from the workload's file
(`safetensors`): then floats are scaled by factors from [0.9, 1), so that a remembered output fails.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.scripts import is_fake, refuse_too_large, scaled, with_parameters
from evo_kernel.tasks.task import HOST_KNOWN_ELEMENTS

INTEGERS = {torch.int8: 128, torch.int16: 1024, torch.int32: 1024, torch.int64: 1024}
"""Random integers lie between minus this and this, as in its harness."""
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
NORMAL = (torch.float32, torch.float16, torch.bfloat16)
_STORED = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class Definition:
    """One definition, the workloads (by their identifiers) that its cases name, and the data set's folder."""

    def __init__(
        self, definition: Mapping[str, Any], workloads: Mapping[str, Mapping[str, Any]], root: str, path: str
    ) -> None:
        self.definition, self.workloads = definition, workloads
        self.root, self.path = Path(root), path
        self._names: dict[str, Any] = {}

    def sizes(self, case: Mapping[str, Any]) -> dict[str, int]:
        """Every axis of a case."""
        fixed = {name: axis["value"] for name, axis in self.definition["axes"].items() if axis["type"] == "const"}
        return fixed | {name: size for name, size in case.items() if name in self.definition["axes"]}

    def shape(self, tensor: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[int, ...] | None:
        """None of a number."""
        sizes = self.sizes(case)
        return None if tensor["shape"] is None else tuple(sizes[axis] for axis in tensor["shape"])

    def elements(self, case: Mapping[str, Any]) -> int:
        """Of all inputs and outputs together."""
        tensors = [*self.definition["inputs"].values(), *self.definition["outputs"].values()]
        shapes = [shape for tensor in tensors if (shape := self.shape(tensor, case)) is not None]
        return sum(math.prod(shape) for shape in shapes)

    def inputs(self, case: Mapping[str, Any], generator: torch.Generator, device: torch.device) -> tuple[Any, ...]:
        if not is_fake():
            needed = 0
            for tensor in self.definition["inputs"].values():
                if (shape := self.shape(tensor, case)) is not None:
                    needed += math.prod(shape) * dtype_of(tensor["dtype"], self.path).itemsize
            refuse_too_large(self.path, needed, torch.device(device), "check it at small sizes only")
        return tuple(self._drawn(name, case, generator, device) for name in self.definition["inputs"])

    def _drawn(self, name: str, case: Mapping[str, Any], generator: torch.Generator, device: torch.device) -> Any:
        tensor, source = self.definition["inputs"][name], self.workloads[case["workload"]][name]
        if source["type"] == "scalar":
            return source["value"]
        shape, dtype = self.shape(tensor, case), dtype_of(tensor["dtype"], self.path)
        if shape is None:
            raise TaskError(f"{self.path}: the number {name} has no value in workload {case['workload']}. Give it one.")
        if source["type"] == "random":
            return _random(shape, dtype, generator, device)
        values = stored(self.root / source["path"], source["tensor_key"])
        if tuple(values.shape) != shape or values.dtype != dtype:
            raise TaskError(
                f"{self.root / source['path']}: {source['tensor_key']!r} is {values.dtype} {tuple(values.shape)}, and "
                f"the definition says {dtype} {shape}. Check the data set out again."
            )
        values = values.to(device)
        return scaled(values, generator) if dtype.is_floating_point else values

    def reference(self) -> Callable[..., Any]:
        """The definition's `run`, with its outputs in the definition's order."""
        names = list(self.definition["inputs"])
        outputs = list(self.definition["outputs"])
        exec(compile(self.definition["reference"], self.path, "exec"), self._names)
        run = self._names["run"]

        def reference(*values: Any) -> Any:
            with torch.no_grad():
                made = run(*values)
            if isinstance(made, Mapping):
                made = tuple(made[name] for name in outputs)
            if not isinstance(made, (tuple, list)):
                made = (made,)
            device = next(value.device for value in values if isinstance(value, torch.Tensor))
            parts = [part if isinstance(part, torch.Tensor) else torch.tensor(part, device=device) for part in made]
            return parts[0] if len(parts) == 1 else tuple(parts)

        return with_parameters(reference, names)

    def host_known(self, cases: Sequence[Mapping[str, Any]]) -> list[int]:
        """Positions of small integers that the workloads read from files."""
        found = []
        for position, (name, tensor) in enumerate(self.definition["inputs"].items()):
            if tensor["shape"] is None or dtype_of(tensor["dtype"], self.path).is_floating_point:
                continue
            read = all(self.workloads[case["workload"]][name]["type"] == "safetensors" for case in cases)
            if read and all(math.prod(self.shape(tensor, case) or ()) <= HOST_KNOWN_ELEMENTS for case in cases):
                found.append(position)
        return found


def _random(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    draw: dict[str, Any] = {"generator": generator, "device": device}
    if dtype in NORMAL:
        return torch.randn(shape, dtype=dtype, **draw)
    if dtype in EIGHT_BITS:
        return torch.randn(shape, **draw).clamp_(-2.0, 2.0).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, **draw).to(torch.bool)
    return torch.randint(-INTEGERS[dtype], INTEGERS[dtype], shape, dtype=dtype, **draw)


def dtype_of(name: str, path: str) -> torch.dtype:
    """Raises TaskError for what this project has no tensors of."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or dtype not in (*NORMAL, *EIGHT_BITS, torch.bool, *INTEGERS):
        raise TaskError(f"{path} has an input or output of type {name}, which no task can have yet. Choose another.")
    return dtype


def stored(path: Path, key: str) -> torch.Tensor:
    """One tensor of a safetensors file (eight bytes of length, a JSON header, then the bytes). Raises TaskError."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < 1 << 27 else {}
            entry = header[key]
            first, last = entry["data_offsets"]
            file.seek(8 + length + first)
            data = file.read(last - first)
        dtype = _STORED[entry["dtype"]]
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(entry["shape"])
    except OSError as error:
        raise TaskError(f"{path} cannot be read ({error.strerror}). Fetch the data set's files too.") from error
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise TaskError(f"{path} holds no tensor {key!r} that can be read. Check the data set out again.") from error
