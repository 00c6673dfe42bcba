"""The trusted GPU process: loads plans, checks them against references that only it has, and times them.

Started as `python -P -m evo_kernel.fitness.runners.cuda_worker TASK`. One JSON line a request on stdin, one a reply on
stdout. It never imports candidate code: what reaches it is a validated plan. After a CUDA error the context is not to
be trusted, so the reply says `fatal` and the parent starts a fresh process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

from evo_kernel.errors import PlanError
from evo_kernel.fitness import check, regimes
from evo_kernel.fitness.plan import CompiledPlan, read_compiled_plan
from evo_kernel.fitness.references import References
from evo_kernel.fitness.runners.cuda_driver import Arena, CudaFault, Launcher, PlanFault, ok
from evo_kernel.fitness.timing import TimingSettings, settled
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Input, Task
from evo_kernel.types import CheckResult, Status

_SETTINGS = TimingSettings()
_REFERENCE_BYTES = 16 << 30  # of host memory


class Worker:
    """State of one GPU process: the task, the flush buffer, and references kept on the host."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        flush = int(self.l2_bytes * _SETTINGS.flush_bytes_of_l2)
        self._flush = torch.empty(flush, dtype=torch.uint8, device="cuda")
        self._references = References(_REFERENCE_BYTES)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Dispatch one request. Faults of a candidate are answers."""
        command = request["command"]
        case = self.task.case(request["case"])
        if command == "baselines":
            return {"status": Status.PASSED, "baselines": self.baselines(case)}
        plan = read_compiled_plan(request["plan"])
        launcher = Launcher(plan)
        try:
            if command == "check":
                return self.check(plan, launcher, case, request["rounds"])
            return self.time(plan, launcher, case, request["seed"], request["check"])
        finally:
            torch.cuda.synchronize()
            launcher.close()

    # --- correctness ------------------------------------------------------------------------------------------------

    def check(self, plan: CompiledPlan, launcher: Launcher, case: Case, rounds: Sequence[list[Any]]) -> dict[str, Any]:
        """Every round: fresh inputs, poisoned scratch, two runs that must agree, then the reference."""
        worst = 0.0
        for seed, regime in rounds:
            inputs = self.draw(case, seed, regime)
            outputs, fault = self._run_twice(plan, launcher, inputs)
            if fault:
                return {"status": Status.WRONG, "reason": fault, "error": float("inf")}
            result = self.compare(case, seed, regime, inputs, outputs)
            worst = max(worst, result.error)
            if not result.passed:
                return {"status": Status.WRONG, "reason": result.reason, "error": worst}
        return {"status": Status.PASSED, "reason": "", "error": worst}

    def compare(
        self, case: Case, seed: int, regime: str, inputs: Sequence[Input], outputs: Sequence[torch.Tensor]
    ) -> CheckResult:
        """The verdict on outputs; called when the candidate's kernels have finished."""
        expected = self._references.of(case.name, seed, regime, "cuda", lambda: check.expect(self.task, inputs))
        return check.compare(case.name, outputs, expected, self.task.tolerance)

    def draw(self, case: Case, seed: int, regime: str) -> tuple[Input, ...]:
        generator = torch.Generator("cuda").manual_seed(seed)
        return regimes.apply(regime, self.task.inputs(case, generator, "cuda"))

    def _run_twice(
        self, plan: CompiledPlan, launcher: Launcher, inputs: Sequence[Input]
    ) -> tuple[list[torch.Tensor], str]:
        results = []
        for _ in (1, 2):
            arena = Arena(plan)
            arena.poison(plan)
            fill(arena, plan, inputs)
            launcher.run(arena)
            torch.cuda.synchronize()
            if (buffer := arena.broken_canary()) is not None:
                return [], f"a kernel writes outside a buffer (near buffer {buffer} of the plan)"
            for position, view in enumerate(plan.plan.inputs):
                value = inputs[position]
                if view is not None and isinstance(value, torch.Tensor) and not _same(arena.tensor(view), value):
                    return [], f"the kernel changes its input {position}"
            results.append([arena.tensor(view).clone() for view in plan.plan.outputs])
        first, second = results
        if not self.task.tolerance.atomics and not all(map(_same, first, second)):
            return [], "two runs on the same inputs differ: a race, a read of memory nothing wrote, or atomics"
        return first, ""

    # --- time -------------------------------------------------------------------------------------------------------

    def time(self, plan: CompiledPlan, launcher: Launcher, case: Case, seed: int, checked: bool) -> dict[str, Any]:
        """Samples in µs over rotating inputs with a cold L2; with `checked`, a timed launch's outputs are checked."""
        size = sum(buffer.bytes for buffer in plan.plan.buffers)
        arenas, drawn = [], []
        for number in range(self.sets(size)):
            arena, inputs = Arena(plan), self.draw(case, seed + number, "nominal")
            arena.poison(plan)
            fill(arena, plan, inputs)
            arenas.append(arena)
            drawn.append(inputs)
        graphs = [capture(lambda arena=arena: launcher.run(arena)) for arena in arenas]
        samples, wall_us = self.sample([graph.replay for graph in graphs])
        outputs = [arenas[0].tensor(view).clone() for view in plan.plan.outputs]
        inputs = drawn[0]
        del graphs, arenas, drawn
        if not checked:
            return {"status": Status.PASSED, "reason": "", "samples_us": samples, "wall_us": wall_us}
        result = self.compare(case, seed, "nominal", inputs, outputs)
        if not result.passed:
            reason = f"right when checked, wrong when timed: {result.reason}"
            return {"status": Status.WRONG, "reason": reason, "error": result.error}
        return {"status": Status.PASSED, "reason": "", "samples_us": samples, "wall_us": wall_us}

    def sets(self, size: int) -> int:
        """How many sets of inputs rotate: more than five times the L2, within reason."""
        wanted = int(self.l2_bytes * _SETTINGS.rotate_bytes_of_l2 / max(size, 1)) + 1
        room = torch.cuda.mem_get_info()[0] // 2
        return max(1, min(max(2, wanted), _SETTINGS.max_sets, room // max(1, 3 * size)))

    def sample(self, replays: Sequence[Callable[[], None]]) -> tuple[list[float], float]:
        """GPU time of single replays, in µs, until the interval is settled; and the wall time of the last."""
        for number in range(_SETTINGS.warmup):
            replays[number % len(replays)]()
        torch.cuda.synchronize()
        samples: list[float] = []
        wall_us = 0.0
        while not settled(samples, _SETTINGS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._flush.zero_()
            start.record()
            replays[len(samples) % len(replays)]()
            end.record()
            before = time.perf_counter()
            torch.cuda.synchronize()
            wall_us = (time.perf_counter() - before) * 1e6
            samples.append(start.elapsed_time(end) * 1e3)
        return samples, wall_us

    def baselines(self, case: Case) -> dict[str, float]:
        """Median µs of every listed baseline by the same clock; one that cannot run here is left out."""
        found: dict[str, float] = {}
        for name, function in self.task.baselines.items():
            try:
                found[name] = self._baseline(case, function)
            # A vendor path may be missing for this dtype, shape or build, and says so in many ways.
            except Exception as error:  # noqa: BLE001
                sys.stderr.write(f"baseline {name} on {case.name}: {error}\n")
        return found

    def _baseline(self, case: Case, function: Callable[..., Any]) -> float:
        probe = self.draw(case, 1, "nominal")
        size = sum(v.numel() * v.element_size() for v in probe if isinstance(v, torch.Tensor))
        sets = [self.draw(case, seed, "nominal") for seed in range(self.sets(3 * size))]
        for _ in range(3):
            function(*sets[0])
        graphs = [capture(lambda inputs=inputs: function(*inputs)) for inputs in sets]
        samples, _ = self.sample([graph.replay for graph in graphs])
        return sorted(samples)[len(samples) // 2]


def fill(arena: Arena, plan: CompiledPlan, inputs: Sequence[Input]) -> None:
    """Copy inputs into the arena where the plan has them."""
    if len(inputs) != len(plan.plan.inputs):
        raise PlanFault(f"the plan takes {len(plan.plan.inputs)} inputs, the task gives {len(inputs)}")
    for view, value in zip(plan.plan.inputs, inputs, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            arena.tensor(view).copy_(value)


def capture(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `work`, run once before on a side stream as captures want it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit-equal, NaN included."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return bool((left.view(kinds[left.element_size()]) == right.view(kinds[right.element_size()])).all())


def _requests(fd: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(fd, "rb") as file:
        for line in file:
            yield json.loads(line)


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints may reach the replies
    task = _task(sys.argv[1])
    torch.backends.cuda.matmul.allow_tf32 = task.tolerance.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = task.tolerance.precision == "tf32"
    worker = Worker(task)
    properties = torch.cuda.get_device_properties(0)
    hello = {
        "device": properties.name,
        "arch": properties.major * 10 + properties.minor,
        "driver": str(ok(driver.cuDriverGetVersion())),
        "pid": os.getpid(),
    }
    _reply(replies, hello)
    for request in _requests(0):
        try:
            answer = worker.answer(request)
        except (PlanFault, PlanError) as fault:
            answer = {"status": Status.REJECTED, "reason": str(fault)}
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            answer = {"status": Status.RUNTIME_ERROR, "reason": f"out of GPU memory: {str(error).splitlines()[0]}"}
        except (CudaFault, RuntimeError) as error:
            reason = f"the GPU stopped: {str(error).strip().splitlines()[0]}"
            answer = {"status": Status.RUNTIME_ERROR, "reason": reason, "fatal": True}
        _reply(replies, answer)


def _task(name: str) -> Task:
    """A task by its file; a `.plan` file stands for itself."""
    if name.endswith(".plan"):
        from evo_kernel.fitness.replay import stand_in

        return stand_in(Path(name))
    return load(name)


def _reply(file: Any, answer: dict[str, Any]) -> None:
    file.write(json.dumps(answer).encode() + b"\n")
    file.flush()


if __name__ == "__main__":
    main()
