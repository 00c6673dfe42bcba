"""The executor's child process: executes a plan on the CPU, counts its memory traffic, or checks a part of it at real
size.

It holds no code of a candidate: IR and plan are data. Requests have a "command", "plan", "ir" (the printed IR of each
kernel) and files `bufferB.bin` (per round: `roundR.bufferB.bin`) with the content of input buffers.

    execute   {"rounds": N, "deadline_s", "repeat"}: completely, with fresh memory each; outputs of each round
    count     {"seed", "deadline_s"}: traffic of each launch
    execute_large  {"seed", "deadline_s", "whole_s", "part_s", "repeat", "counted"}: outputs, or elements that a few
                   programs write

An answer is a JSON header, preceded by its length (8 bytes, little-endian), and followed by the bytes of the tensors
that it names.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo_kernel.fitness.ir import count_launch, library_loops, partial, torch_crowds
from evo_kernel.fitness.ir.counting import Counter, means_of
from evo_kernel.fitness.ir.engine import OutOfTime, Stuck
from evo_kernel.fitness.ir.execute import ExecutionFinding, Launched, buffers_of, launch, traits_of
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic, TorchWork
from evo_kernel.fitness.ir.memory import POISON, DeviceBuffer, DeviceMemory
from evo_kernel.fitness.ir.module import ATOMICS, IRModule
from evo_kernel.fitness.ir.nodes import (
    CannotExecute,
    TorchFault,
    changed_input,
    memory_of,
    modules_of,
    run_nodes,
    undefined_of,
    view_of,
)
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.ir.types import IRError
from evo_kernel.fitness.plan.launch_plan import Aten, Launch, Plan, View
from evo_kernel.processes import keep_memory


class _Refused(Exception):
    """The plan's fault, with the status and reason of the answer."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.header = {"fault": {"status": status, "reason": reason}}


def warm_up() -> None:
    """Nothing to prepare: a child serves one request."""
    keep_memory()


def handle(request: dict[str, Any], folder: str) -> bytes:
    """Serve one request. A fault of the plan is an answer, not an exception."""
    torch.set_num_threads(1)  # children share the cores, so threads of one would wait for each other
    plan = Plan.model_validate(request["plan"])
    work = _Work(plan, request["ir"], request["mutates"], Path(folder), float(request["deadline_s"]), request["ahead"])
    try:
        if request["command"] == "execute":
            return work.execute(int(request["rounds"]), bool(request["repeat"]))
        if request["command"] == "count":
            return work.count(int(request["seed"]), bool(request["complete"]))
        return work.execute_large(
            int(request["seed"]), float(request["whole_s"]), float(request["part_s"]), bool(request["repeat"]),
            request["counted"],
        )  # fmt: skip
    except _Refused as fault:
        return work.answer(fault.header)


class _Work:
    def __init__(
        self, plan: Plan, texts: Sequence[str], mutates: Sequence[int], folder: Path, deadline_s: float,
        ahead: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._plan, self._texts, self._folder, self._deadline_s = plan, texts, folder, deadline_s
        self._ahead = ahead
        self._kept = frozenset(range(len(plan.inputs))).difference(mutates)  # inputs that must not change
        self._deadline = time.monotonic() + deadline_s
        self._blobs: list[memoryview] = []
        self._used: dict[int, DeviceBuffer] = {}  # inputs of the last memory
        self._zeroed: set[tuple[int, int]] | None = None  # see DeviceMemory
        self._seed = secrets.randbits(31)  # for orders that the program leaves open; not predictable
        self._in_order = False  # programs wait for later ones, so they run in order of their ids

    def execute(self, rounds: int, repeat: bool) -> bytes:
        """Execute rounds until one fails."""
        outcomes: list[dict[str, Any]] = []
        for number in range(rounds):
            self._deadline = time.monotonic() + self._deadline_s
            try:
                outcomes.append(self._round(f"round{number}.", repeat))
            except _Refused as fault:
                outcomes.append(fault.header)
                break
        return self.answer({"rounds": outcomes})

    def _round(self, prefix: str, repeat: bool) -> dict[str, Any]:
        contents, self._used = self._contents(prefix), {}
        modules = self._modules()
        try:
            memory = self._executed(modules, contents, reverse=False)
        except _Refused as fault:
            if fault.status == "wrong":
                self._without_other(modules, contents)
            raise
        if self._lacks(memory):
            self._without_other(modules, contents)
        if repeat and any(map(self._has_another_order, modules)):
            repeated = self._executed(modules, contents, reverse=True)
            _same([(_raw(memory, view), _raw(repeated, view)) for view in self._plan.outputs])
        changed = changed_input(self._plan, memory, contents, self._kept)
        return {"changed": changed, **self._outputs(memory)}

    def _lacks(self, memory: DeviceMemory) -> bool:
        """Whether an output has undefined elements."""
        return any(undefined_of(memory.buffers[view.buffer], view) is not None for view in self._plan.outputs)

    def _without_other(self, modules: Sequence[IRModule], contents: dict[int, torch.Tensor]) -> None:
        """Raise _Refused with the lines of loads with a mask and without `other`, if nothing is undefined but what they
        give where the mask is off."""
        self._used, self._zeroed = {}, set()
        try:
            lacks = self._lacks(self._executed(modules, contents, reverse=False))
        except _Refused:
            return
        finally:
            zeroed, self._used, self._zeroed = self._zeroed, {}, None
        lines = {
            f"line {operation.line}"
            for module, kernel in zip(modules, self._plan.kernels, strict=True)
            for operation in parse(kernel.code).operations()
            if (id(module), operation.ordinal) in zeroed and operation.line
        }
        if zeroed and not lacks:
            where = ", ".join(sorted(lines, key=lambda text: int(text.split()[1]))) or "some place"
            raise _Refused(
                "wrong",
                f"the output depends on what tl.load gives where its mask is off, without `other` ({where}): Triton "
                "leaves that undefined, though NVIDIA GPUs give 0 today. Write other=0 if that is meant",
            )

    def _has_another_order(self, module: IRModule) -> bool:
        """Whether a kernel's atomic operations can be executed in another order: those of programs in order, which
        wait, cannot if each is of one element."""
        return _has_atomics(module) and not (self._in_order and traits_of(module).waits and _is_scalar(module))

    def _outputs(self, memory: DeviceMemory) -> dict[str, list[int]]:
        """Whole outputs, and the number of undefined elements: an integer may legitimately equal the poison."""
        marks = [undefined_of(memory.buffers[view.buffer], view) for view in self._plan.outputs]
        return {
            "outputs": [self._output(memory, view) for view in self._plan.outputs],
            "unwritten": [0 if mark is None else int(mark.sum()) for mark in marks],
        }

    def _output(self, memory: DeviceMemory, view: View) -> int:
        """Append a whole output, row-major, with poison for undefined elements."""
        data = _raw(memory, view)
        marks = undefined_of(memory.buffers[view.buffer], view)
        if marks is not None:
            data = data.clone()
            data[marks.reshape(-1)] = POISON
        return self._blob(data)

    def _executed(
        self, modules: Sequence[IRModule], contents: dict[int, torch.Tensor], reverse: bool,
        did: list[dict[str, float]] | None = None, shuffled: bool = True, inside: dict[int, TorchWork] | None = None,
    ) -> DeviceMemory:  # fmt: skip
        """Execute the plan. `did` receives what each launch's programs did on average, `inside` what torch
        operations did, by node.

        `shuffled`: also programs that may wait.
        """
        memory = self._memory(contents)
        done: list[dict[str, float]] = []

        def run(number: int, module: IRModule, node: Launch) -> Launched:
            total = math.prod(node.grid)
            few = count_launch.programs_with_lines(torch.arange(total), self._seed)
            counter = None if did is None else Counter(module, memory, total, few, self._seed)
            launched = launch(
                module, node.grid, node.args, memory, seed=self._seed + number, deadline=self._deadline,
                reverse=reverse, observer=counter, shuffled=shuffled,
            )  # fmt: skip
            if counter is not None:
                done.append(means_of(counter) | count_launch.touched(counter, few))
            return launched

        def sees(place: int, node: Aten, tensors: Sequence[torch.Tensor]) -> None:
            if inside is not None:
                inside[place] = TorchWork(library_loops.of_torch(node, tensors), torch_crowds.of_torch(node, tensors))

        try:
            self._ended(memory, modules, run, sees)
        except Stuck:
            self._in_order = True
            return self._executed(modules, contents, reverse, did, shuffled=False, inside=inside)
        if did is not None:
            did += done
        return memory

    def count(self, seed: int, complete: bool) -> bytes:
        """Traffic of each launch. `complete`: all inputs are given, not only integers."""
        traffic = self._counted(self._modules(), self._contents(""), seed, complete)
        return self.answer({"traffic": [asdict(part) for part in traffic]})

    def _counted(
        self, modules: Sequence[IRModule], contents: dict[int, torch.Tensor], seed: int, complete: bool
    ) -> list[LaunchTraffic]:
        """Count traffic; a launch whose stores of floats affect a later launch is executed too."""
        try:
            return self._counts(modules, contents, seed, complete, executes=False)
        except _Refused as fault:
            if fault.status != "wrong" or not complete or len(self._plan.launches) == 1:
                raise
        return self._counts(modules, contents, seed, complete, executes=True)

    def _counts(
        self, modules: Sequence[IRModule], contents: dict[int, torch.Tensor], seed: int, complete: bool, executes: bool
    ) -> list[LaunchTraffic]:
        counts: list[LaunchTraffic] = []
        known: dict[str, LaunchTraffic] = {}  # launches that depend only on their text and inputs that stay
        kept = {view.buffer for n, view in enumerate(self._plan.inputs) if view is not None and n in self._kept}
        memory = self._memory(contents)

        def run(number: int, module: IRModule, node: Launch) -> Launched:
            key = node.model_dump_json()
            if (traffic := known.get(key)) is None:
                traffic = count_launch.count(module, node, memory, self._deadline, complete, seed)
                if isinstance(traffic, ExecutionFinding):
                    return Launched(traffic)
                traits = traits_of(module)
                decide = buffers_of(
                    module.entry, node.args, traits.loaded if complete else traits.indexed, memory.buffers
                )
                if kept.issuperset(decide):
                    known[key] = traffic
            counts.append(traffic)
            if executes:
                return launch(module, node.grid, node.args, memory, seed=seed + number, deadline=self._deadline)
            return Launched()

        self._ended(memory, modules, run)
        return counts

    def execute_large(
        self, seed: int, whole_s: float, part_s: float, repeat: bool, counted: Sequence[Sequence[float]]
    ) -> bytes:
        """Execute the whole plan if that takes at most `whole_s`, else a part of it that takes `part_s`.

        `repeat`: with atomic operations, execute twice in different orders, which must give the same outputs.
        `counted`: of each launch, mean bytes, operations and iterations of its programs; empty: not known.
        """
        contents, modules = self._contents(""), self._modules()
        repeat = repeat and any(map(_has_atomics, modules))
        is_short = bool(counted) and self._seconds(modules, counted) <= whole_s
        part = None if is_short else self._surveyed(modules, contents, seed)
        if part is not None and part.seconds() > whole_s:
            memory, header = self._part(part, modules, contents, part_s, repeat)
        else:
            del part  # its memory is used again
            memory, header = self._whole(modules, contents, repeat)
        return self.answer({**header, "changed": changed_input(self._plan, memory, contents, self._kept)})

    def _seconds(self, modules: Sequence[IRModule], counted: Sequence[Sequence[float]]) -> float:
        """Estimated time of executing the whole plan."""
        launches = [(modules[node.kernel], math.prod(node.grid)) for node in self._plan.launches]
        return sum(
            programs * partial.seconds_of(module, programs, moved, flops, iterations)
            for (module, programs), (moved, flops, iterations) in zip(launches, counted, strict=True)
        )

    def _surveyed(
        self, modules: Sequence[IRModule], contents: dict[int, torch.Tensor], seed: int
    ) -> partial.PartialExecution | None:
        """What all programs do, as far as it does not depend on floating-point data; None: execute the plan."""
        if any(isinstance(node, Aten) for node in self._plan.nodes) or any(traits_of(m).in_order for m in modules):
            return None  # torch's results may affect anything; persistent programs run all or none
        generator = torch.Generator().manual_seed(seed)
        memory = self._memory(contents)
        part = partial.PartialExecution(self._plan, modules, memory, self._deadline, generator)
        try:
            self._ended(memory, modules, part.survey)
        except partial.DependsOnData:
            return None
        return part

    def _whole(
        self, modules: Sequence[IRModule], contents: dict[int, torch.Tensor], repeat: bool
    ) -> tuple[DeviceMemory, dict[str, Any]]:
        did: list[dict[str, float]] = []
        inside: dict[int, TorchWork] = {}
        memory = self._executed(modules, contents, reverse=False, did=did, inside=inside)
        if repeat and any(map(self._has_another_order, modules)):
            repeated = self._executed(modules, contents, reverse=True)
            _same([(_raw(memory, view), _raw(repeated, view)) for view in self._plan.outputs])
        works = {place: asdict(work) for place, work in inside.items() if work != TorchWork()}
        return memory, {"whole": True, "executed": did, "inside": works, **self._outputs(memory)}

    def _part(
        self,
        part: partial.PartialExecution,
        modules: Sequence[IRModule],
        contents: dict[int, torch.Tensor],
        limit_s: float,
        repeat: bool,
    ) -> tuple[DeviceMemory, dict[str, Any]]:
        try:
            part.choose(limit_s)
        except OutOfTime as error:
            raise _Refused("timeout", f"it did not finish on the CPU within {self._deadline_s:g} s") from error
        memory = self._memory(contents)
        self._ended(memory, modules, part.run(memory))
        executed, chosen = part.executed(), list(zip(self._plan.outputs, part.compared, strict=True))
        if repeat:
            did = [_raw(memory, view)[elements] for view, elements in chosen]
            memory = self._memory(contents)
            self._ended(memory, modules, part.run(memory, reverse=True))
            _same([(first_run, _raw(memory, view)[n]) for first_run, (view, n) in zip(did, chosen, strict=True)])
        outputs = []
        unwritten = list(part.unwritten)
        for number, (view, elements) in enumerate(chosen):
            marks = undefined_of(memory.buffers[view.buffer], view)
            if marks is not None:
                unwritten[number] = max(unwritten[number], int(marks.reshape(-1)[elements].sum()))
            numbers = part.told(number)
            outputs.append([self._blob(numbers), self._blob(_raw(memory, view)[numbers])])
        return memory, {"whole": False, "executed": executed, "parts": outputs, "unwritten": unwritten}

    # --- shared ---------------------------------------------------------------------------------------------------

    def _modules(self) -> list[IRModule]:
        try:
            return modules_of(self._plan, self._texts, self._ahead)
        except CannotExecute as error:
            raise _Refused("rejected", f"it cannot be checked without a GPU: {error}") from error
        except IRError as error:
            raise _Refused("rejected", f"its IR cannot be read: {error}") from error

    def _memory(self, contents: dict[int, torch.Tensor]) -> DeviceMemory:
        try:
            memory = memory_of(self._plan, contents, self._used)
        except CannotExecute as error:
            raise _Refused("rejected", f"it cannot be checked without a GPU: {error}") from error
        memory.zeroed = self._zeroed
        self._used = {n: memory.buffers[n] for n, buffer in enumerate(self._plan.buffers) if buffer.kind == "input"}
        return memory

    def _ended(self, memory: DeviceMemory, modules: Sequence[IRModule], *run: Any) -> None:
        """Run the nodes. Raises _Refused with the reason if they end early."""
        try:
            finding = run_nodes(self._plan, memory, modules, *run)
        except OutOfTime as error:
            raise _Refused("timeout", f"it did not finish on the CPU within {self._deadline_s:g} s") from error
        except IRError as error:
            raise _Refused("rejected", f"it cannot be checked without a GPU: {error}") from error
        except TorchFault as error:
            raise _Refused("runtime_error", str(error)) from error
        if finding is not None:
            status = "wrong" if finding.kind in ("race", "undefined") else "runtime_error"
            raise _Refused(status, self._sentence(finding))

    def _sentence(self, finding: ExecutionFinding) -> str:
        """The finding as a sentence, with the line of the candidate's source: the recorder's IR has locations."""
        line = 0
        for kernel in self._plan.kernels:
            for operation in parse(kernel.code).operations() if kernel.language != "cuda" and not line else ():
                if operation.ordinal == finding.ordinal and operation.name == finding.operation:
                    line = operation.line
        who = f"program {finding.program}" if finding.program is not None else "a program"
        where = f" (line {line})" if line else ""
        names = ", ".join(sorted({kernel.name for kernel in self._plan.kernels}))
        return f"{who} of {names} {finding.message}{where}"

    def _contents(self, prefix: str) -> dict[int, torch.Tensor]:
        """Bytes of the input buffers in the request."""
        contents: dict[int, torch.Tensor] = {}
        for number in range(len(self._plan.buffers)):
            path = self._folder / f"{prefix}buffer{number}.bin"
            if path.exists():
                size = path.stat().st_size
                data = np.memmap(path, dtype=np.uint8, mode="c") if size else np.zeros(0, dtype=np.uint8)
                contents[number] = torch.from_numpy(data)
        return contents

    def _blob(self, data: torch.Tensor) -> int:
        self._blobs.append(data.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return len(self._blobs[-1])

    def answer(self, header: dict[str, Any]) -> bytes:
        text = json.dumps(header).encode()
        return b"".join([len(text).to_bytes(8, "little"), text, *self._blobs])


def _raw(memory: DeviceMemory, view: View) -> torch.Tensor:
    """Elements of an output in row-major order, each as a row of its bytes."""
    data = view_of(memory.buffers[view.buffer], view).contiguous().reshape(-1)
    return data.view(torch.uint8).reshape(-1, view.item_bytes) if data.numel() else data.to(torch.uint8).reshape(0, 1)


def _same(outputs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Raise _Refused if two runs differ."""
    if not all(torch.equal(once, again) for once, again in outputs):
        raise _Refused(
            "wrong",
            "two runs on the same inputs differ: the result depends on the order of atomics, which "
            "TOLERANCE = 'atomics' in the task allows",
        )


_ATOMICS = ATOMICS | {"tt.descriptor_reduce"}


def _has_atomics(module: IRModule) -> bool:
    return any(operation.name in _ATOMICS for operation in module.operations())


def _is_scalar(module: IRModule) -> bool:
    """Whether each of its atomic operations is of one element."""
    atomics = [operation for operation in module.operations() if operation.name in _ATOMICS]
    return all(operation.results and operation.results[0].type.elements == 1 for operation in atomics)
