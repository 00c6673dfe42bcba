"""Selects the runner: CUDA on one or several GPUs; without one, the CPU runner with executor and time model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.gpus import Nvml
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.runners.base import Checked, Draw, PlanSetAnswer, PlanSetRequest, Runner
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.stages import WAITING, Stages
from evo_kernel.fitness.timing.estimates import Comparison
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import Environment

MODELED_ARCH = 90


def open_runner(task: Task, device: str, deadline_s: float, gpus: str = "1") -> Runner:
    """A runner for `device` (auto, cpu, cuda) on `gpus` GPUs (a number, or all). Raises UserError."""
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device {device!r}: use auto, cpu or cuda")
    present = _gpu_present()
    if device == "cuda" and not present:
        raise UserError(
            "no CUDA GPU is visible here. Use --device cpu for modeled scores; run `evo-kernel doctor` for details."
        )
    if device == "cpu" or not present:
        return CpuRunner(task, MODELED_ARCH, deadline_s)
    from evo_kernel.fitness.runners.cuda_runner import CudaRunner

    count = gpu_count(gpus, torch.cuda.device_count())
    if count == 1:
        return CudaRunner(task, 0, deadline_s)

    return RunnerPool([CudaRunner(task, gpu, deadline_s) for gpu in range(count)])


def arch_of(device: str) -> int:
    """Compute capability × 10 of the GPU for `device`, or of the modeled one. Creates no CUDA context."""
    return MODELED_ARCH if device == "cpu" or not _gpu_present() else Nvml().arch or MODELED_ARCH


def gpu_count(requested: str, present: int) -> int:
    """The number of GPUs that `--gpus` requests: a number, or all. Raises UserError."""
    if requested == "all":
        return present
    if not requested.isdecimal() or not 1 <= int(requested) <= present:
        raise UserError(f"--gpus {requested}: give a number from 1 to {present}, or all")
    return int(requested)


def _gpu_present() -> bool:
    """Whether the driver sees a GPU. Uses NVML, so that this process creates no CUDA context."""
    return torch.version.cuda is not None and torch.cuda.device_count() > 0


_Answer = TypeVar("_Answer")
_LOSSES = 3  # consecutive failures after which a GPU is excluded


class RunnerPool(Runner):
    """Runners of GPUs of the same model; each serves one request at a time."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        if not runners:
            raise ValueError("a pool needs at least one runner")
        self._runners = tuple(runners)
        self.stages = Stages([gpu for runner in runners for gpu in runner.stages.gpus])
        for runner in runners:  # all share one counter
            runner.stages = self.stages
        self._free = list(self._runners)
        self._lost: dict[int, int] = {}  # consecutive failures by the runner's id
        self._changed = threading.Condition()
        self._closed = False
        self.arch = runners[0].arch

    @property
    def card(self) -> str:
        return "+".join(runner.card for runner in self._runners)

    def prepare_references(self, draws: Sequence[Draw]) -> None:
        """Prepare all runners, since any may get the request."""
        with ThreadPoolExecutor(len(self._runners)) as threads:
            list(threads.map(lambda runner: runner.prepare_references(draws), self._runners))

    # --- Runner -----------------------------------------------------------------------------------------------------

    @property
    def busy_s(self) -> float:
        return sum(runner.busy_s for runner in self._runners)

    @property
    def baseline_faults(self) -> Mapping[str, str]:
        return {name: reason for runner in self._runners for name, reason in runner.baseline_faults.items()}

    def start(self) -> None:
        """Start all in parallel.

        Raises UserError if the GPUs are of different models, whose times are not comparable.
        """
        with ThreadPoolExecutor(len(self._runners)) as starters:
            for done in [starters.submit(runner.start) for runner in self._runners]:
                done.result()
        models = {runner.environment("").device for runner in self._runners}
        if len(models) > 1:
            raise UserError(f"the GPUs differ ({', '.join(sorted(models))}): use those of one model, with --gpus N")
        self.arch = self._runners[0].arch

    def environment(self, confinement: str) -> Environment:
        return self._runners[0].environment(confinement)

    def answer(self, request: PlanSetRequest) -> PlanSetAnswer:
        return self._on_a_free_one(lambda runner: runner.answer(request))

    def pair(self, incumbent: CompiledPlan, challenger: CompiledPlan, case: Case, seed: int) -> Comparison | Checked:
        return self._on_a_free_one(lambda runner: runner.pair(incumbent, challenger, case, seed))

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Runner]:
        runner, failed = self._take(), False
        try:
            with runner.fresh() as renewed:
                yield renewed
        except InfraError:
            failed = True
            raise
        finally:
            self._give(runner, failed)

    def baselines(self, case: Case) -> Mapping[str, float]:
        return self._on_a_free_one(lambda runner: runner.baselines(case))

    def ceilings(self) -> Mapping[str, float]:
        return self._on_a_free_one(lambda runner: runner.ceilings())

    def counters(self, parts: Sequence[CountPart]) -> CounterReading:
        return self._on_a_free_one(lambda runner: runner.counters(parts))

    def close(self) -> None:
        self._closed = True
        for runner in self._runners:
            runner.close()
        with self._changed:
            self._changed.notify_all()

    # --- who serves -------------------------------------------------------------------------------------------------

    def _on_a_free_one(self, work: Callable[[Runner], _Answer]) -> _Answer:
        """The answer of the first free runner, or of another one if that runner's machine fails."""
        for final in (False, True):
            runner = self._take()
            try:
                answer = work(runner)
            except InfraError:
                last = self._give(runner, failed=True)
                if final or last or self._closed:
                    raise
                continue
            except BaseException:
                self._give(runner, failed=False)
                raise
            self._give(runner, failed=False)
            return answer
        raise AssertionError("the second attempt answers or raises")

    def _take(self) -> Runner:
        with self.stages.at(WAITING), self._changed:
            while not self._free:
                if self._closed or self._all_lost():
                    raise InfraError("no GPU is left to run on")
                self._changed.wait()
            best = next((runner for runner in self._free if runner.is_free), self._free[0])
            self._free.remove(best)
            return best

    def _give(self, runner: Runner, failed: bool) -> bool:
        """Return a runner unless it keeps failing; returns whether it was the last one."""
        with self._changed:
            losses = self._lost[id(runner)] = self._lost.get(id(runner), 0) + 1 if failed else 0
            if losses < _LOSSES:
                self._free.append(runner)
            self._changed.notify_all()
            return failed and (len(self._runners) == 1 or self._all_lost())

    def _all_lost(self) -> bool:
        return all(self._lost.get(id(runner), 0) >= _LOSSES for runner in self._runners)
