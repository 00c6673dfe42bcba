"""Client of the executor's child (ir/child.py): sends requests and validates its untrusted answers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from evo_kernel.fitness.correctness.check import changed_reason
from evo_kernel.fitness.ir.launch_traffic import Amount, LaunchTraffic, TorchWork
from evo_kernel.fitness.ir.memory import POISON
from evo_kernel.fitness.plan.launch_plan import MAX_INPUTS, MAX_NODES, CompiledPlan, Plan, View
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.zygote import JobResult, Zygote
from evo_kernel.tasks.layout import write
from evo_kernel.tasks.task import Input
from evo_kernel.types import Status

_ANSWER_BYTES = 512 << 20
_MEMORY_BYTES = 24 << 30

_Form = TypeVar("_Form", bound=BaseModel)
_Bytes = Annotated[int, Field(ge=0, le=_ANSWER_BYTES)]
_Position = Annotated[int, Field(ge=0, lt=MAX_INPUTS)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExecutorFault(_Answer):
    """Why there is no result. The child cannot report that a plan passed."""

    status: Annotated[str, Field(pattern="^(rejected|wrong|runtime_error|timeout)$")]
    reason: Annotated[str, Field(max_length=4000)]

    def checked(self, where: str = "") -> Checked:
        return Checked(Status(self.status), f"{where}{self.reason}"[:2000])


class Execution(_Answer):
    """A completely executed plan: output bytes, and the number of elements never written, by output."""

    fault: ExecutorFault | None = None
    changed: _Position | None = None  # the input that the plan changes
    outputs: Annotated[list[_Bytes], Field(max_length=64)] = []
    unwritten: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)] = []

    def tensors(self, views: Sequence[View], blobs: Blobs, where: str = "") -> list[torch.Tensor] | Checked:
        """The outputs, or an evident fault. Raises ValueError."""
        for number, (view, lacking) in enumerate(zip(views, self.unwritten, strict=True)):
            if lacking:  # poison does not show it where the reference is NaN
                return Checked(Status.WRONG, where + unwritten_reason(number, lacking, view.elements))
        return [blobs.tensor(size, view) for size, view in zip(self.outputs, views, strict=True)]


class Executions(_Answer):
    """Rounds in order, up to the first failure."""

    rounds: Annotated[list[Execution], Field(min_length=1, max_length=1 << 12)]


class CountedTraffic(_Answer):
    """Traffic and operations of a plan's launches."""

    fault: ExecutorFault | None = None
    traffic: list[LaunchTraffic] = []


class LargeExecution(Execution):
    """A plan of real size: whole outputs, or parts of them as (bytes of int64 indices, bytes of values)."""

    whole: bool = False
    executed: Annotated[list[dict[str, Amount]], Field(max_length=1 << 20)] = []  # by launch
    inside: Annotated[dict[str, TorchWork], Field(max_length=MAX_NODES)] = {}  # torch operations, by node
    parts: Annotated[list[tuple[_Bytes, _Bytes]], Field(max_length=64)] = []


class Blobs:
    """A reader of concatenated tensors' bytes."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._position = data, start

    def take(self, size: int) -> torch.Tensor:
        """The next `size` bytes as uint8. Raises ValueError."""
        if self._position + size > len(self._data):
            raise ValueError("fewer bytes than were announced")
        if not size:
            return torch.empty(0, dtype=torch.uint8)  # numpy gives it a stride of 0, which no other type can view
        data = torch.from_numpy(np.frombuffer(self._data, dtype=np.uint8, count=size, offset=self._position).copy())
        self._position += size
        return data

    def tensor(self, size: int, view: View) -> torch.Tensor:
        """The next bytes as an output. Raises ValueError."""
        if size != view.elements * view.item_bytes:
            raise ValueError("an output came back with another size")
        return self.take(size).view(getattr(torch, view.dtype)).reshape(view.shape)


class Executor:
    """Executes plans on the CPU, one child per request. Thread-safe."""

    def __init__(self, deadline_s: float, repeat: bool, mutates: tuple[int, ...] = ()) -> None:
        """`repeat`: execute twice and require bit-equal outputs. `mutates`: positions of inputs that may change."""
        self._deadline_s, self._repeat, self._mutates = deadline_s, repeat, mutates
        self._zygote = Zygote("execute")

    def start(self) -> None:
        self._zygote.start()

    def close(self) -> None:
        self._zygote.close()

    def execute(self, plan: CompiledPlan, drawn: Sequence[Sequence[Input]]) -> list[list[torch.Tensor] | Checked]:
        """Outputs of each round, or how it failed; rounds after a failure are omitted."""
        files = {
            f"round{number}.{name}": data
            for number, inputs in enumerate(drawn)
            for name, data in input_files(plan.plan, inputs).items()
        }
        request = {"command": "execute", "rounds": len(drawn), "repeat": self._repeat}
        answer = self._ask(plan, request, files, Executions, self._deadline_s * len(drawn))
        if isinstance(answer, Checked):
            return [answer]
        header, blobs = answer
        results: list[list[torch.Tensor] | Checked] = []
        for part in header.rounds:
            if part.fault is not None:
                return [*results, part.fault.checked()]
            if part.changed is not None:
                return [*results, Checked(Status.WRONG, changed_reason(part.changed))]
            try:
                results.append(part.tensors(plan.plan.outputs, blobs))
            except ValueError as error:
                return [*results, malformed(error)]
        return results if len(results) == len(drawn) else [*results, malformed("it lacks a round")]

    def execute_large(
        self, plan: CompiledPlan, inputs: Sequence[Input], whole_s: float, part_s: float,
        counted: Sequence[LaunchTraffic] = (),
    ) -> tuple[LargeExecution, Blobs] | Checked:  # fmt: skip
        """Execute a plan of real size: completely if that takes at most `whole_s`, else some programs for `part_s`
        seconds. `counted`: what `count` gave, if it is known: then a plan that takes less is not surveyed before."""
        request = {
            "command": "execute_large", "seed": secrets.randbits(48), "whole_s": whole_s, "part_s": part_s,
            "repeat": self._repeat,
            "counted": [(one.load_bytes + one.store_bytes, sum(one.flops.values()), one.iterations) for one in counted],
        }  # fmt: skip
        return self._ask(plan, request, input_files(plan.plan, inputs), LargeExecution, self._deadline_s)

    def count(
        self, plan: CompiledPlan, inputs: Mapping[int, Input], seed: int, complete: bool
    ) -> Sequence[LaunchTraffic] | Checked:
        files = input_files(plan.plan, [inputs.get(n) for n in range(len(plan.plan.inputs))])
        request = {"command": "count", "seed": seed, "complete": complete}
        answer = self._ask(plan, request, files, CountedTraffic, self._deadline_s)
        if isinstance(answer, Checked):
            return answer
        header, _ = answer
        if header.fault is not None:
            return header.fault.checked()
        if len(header.traffic) != len(plan.plan.launches):
            return malformed(f"{len(header.traffic)} launches where the plan has {len(plan.plan.launches)}")
        return tuple(header.traffic)

    def _ask(
        self,
        plan: CompiledPlan,
        request: dict[str, Any],
        files: Mapping[str, memoryview],
        form: type[_Form],
        deadline_s: float,
    ) -> tuple[_Form, Blobs] | Checked:
        """Send one request to a child; returns the answer's header and data."""
        whole = {
            **request,
            "plan": plan.plan.model_dump(mode="json"),
            "ir": [binary.ir for binary in plan.binaries],
            "ahead": [binary.early for binary in plan.binaries],
            "mutates": self._mutates,
            "deadline_s": self._deadline_s,
        }
        # The child observes its own deadline; this one is for a child that does not.
        limits = SandboxLimits(deadline_s=deadline_s + 5.0, memory_bytes=_MEMORY_BYTES, answer_bytes=_ANSWER_BYTES)
        result = self._zygote.run(whole, limits, files)
        if result.data is None:
            return self._ended(result)
        try:
            length = int.from_bytes(result.data[:8], "little")
            header = TypeAdapter(form).validate_json(result.data[8 : 8 + length], strict=True)
        except (ValidationError, json.JSONDecodeError) as error:
            return malformed(error)
        return header, Blobs(result.data, 8 + length)

    def _ended(self, result: JobResult) -> Checked:
        if result.outcome == "timeout":
            return Checked(Status.TIMEOUT, f"it did not finish on the CPU within {self._deadline_s:g} s")
        if result.outcome == "memory":
            return Checked(Status.RUNTIME_ERROR, "it needs more memory than the executor may use")
        last = result.detail.strip().splitlines()[-1] if result.detail.strip() else result.outcome
        return Checked(Status.RUNTIME_ERROR, f"it ended in the executor: {last}"[:2000])


def malformed(error: object) -> Checked:
    return Checked(Status.REJECTED, f"the executor's answer is malformed: {error}"[:2000])


def unwritten_reason(output: int, lacking: int, elements: int) -> str:
    return (
        f"output {output} has {lacking} of {elements} elements that were never written, or that come from memory "
        "nothing wrote"
    )


def _is_whole(view: View, value: torch.Tensor, size: int) -> bool:
    """Whether a dense input is its whole buffer, so that no copy is needed."""
    dense = value.is_contiguous() and view.has_strides(value.stride()) and not view.offset
    return dense and value.numel() * value.element_size() == size and str(value.dtype) == f"torch.{view.dtype}"


def input_files(plan: Plan, inputs: Sequence[Input | None]) -> dict[str, memoryview]:
    """Bytes of the input buffers by file name, with poison between elements."""
    files = {}
    for view, value in zip(plan.inputs, inputs, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            size = plan.buffers[view.buffer].bytes
            if _is_whole(view, value, size):
                files[f"buffer{view.buffer}.bin"] = value.detach().reshape(-1).view(torch.uint8).numpy().data
                continue
            storage = torch.full((size,), POISON, dtype=torch.uint8)
            usable = storage.numel() // view.item_bytes * view.item_bytes
            typed = storage[:usable].view(getattr(torch, view.dtype))
            write(torch.as_strided(typed, view.shape, view.strides, view.offset), value)
            files[f"buffer{view.buffer}.bin"] = storage.numpy().data
    return files
