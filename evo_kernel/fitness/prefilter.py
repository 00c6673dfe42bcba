"""The pre-filter: knob settings that the model puts far behind their siblings are not measured.

Used while knobs are tuned on a GPU, for nothing else: a source's own setting, re-measurements and confirmations are
always measured, and so is every setting that cannot be modeled. Modeling a setting takes a count of its traffic,
which costs more than measuring it; so it is done only while those who want to measure wait longer for the GPU than
that takes, and the host's cores have nothing better to do.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from evo_kernel.fitness.model import modeled_time
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Recording
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.targets import target_for
from evo_kernel.tasks.loading import BUILTIN
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import Knobs

Mode = Literal["auto", "on", "off"]

EARNED: Mapping[str, float] = {
    "attention": 0.78, "cross_entropy": 0.74, "layernorm": 0.63, "linear_gelu": 0.88, "matmul": 0.86, "rmsnorm": 0.63,
    "softmax": 0.74,
}  # fmt: skip
"""Spearman's rank correlation of modeled with measured time among the settings of one structure on one case, by
built-in task, with constants fitted to the other tasks only. Printed by `python -m benchmarks.calibrate fit
benchmarks/calibration/h200.jsonl.xz` (H200)."""
ENOUGH = 0.8
"""Of EARNED: from here on the model is believed about a task."""
BEHIND = 2.0
"""A setting modeled slower than so many times the best-modeled sibling is not measured. On an H200 that
leaves out 58 % of matmul's settings and loses 0.41 % of the best time, 45 % and nothing for linear_gelu; a factor of
1.5 would leave out 75 % and 67 %, and lose 0.54 % and 0.62 %."""
_MEMORY = 0.9  # share of the old mean in a running mean
_SAMPLING_S = 0.5  # before anything was sampled: what one takes on a busy core


def prefilter_for(task: Task, mode: Mode, arch: int, deadline_s: float) -> Prefilter | None:
    """The pre-filter that a task gets on a GPU; None where it has none."""
    earned = task.path.is_relative_to(BUILTIN) and EARNED.get(task.name, 0.0) >= ENOUGH
    if mode == "off" or (mode == "auto" and not earned):
        return None
    return Prefilter(CpuRunner(task, arch, deadline_s), always=mode == "on")


class Prefilter:
    """Models settings. Thread-safe."""

    def __init__(self, sampler: CpuRunner, always: bool = False) -> None:
        """`always`: also while nobody waits for the GPU."""
        self._sampler, self._always = sampler, always
        self._lock = threading.Lock()
        self._waiting_s, self._sampling_s = 0.0, _SAMPLING_S  # running means, of one setting
        self.asked, self.left_out = 0, 0

    def start(self) -> None:
        self._sampler.start()

    def close(self) -> None:
        self._sampler.close()

    @property
    def pays(self) -> bool:
        """Whether a setting waits longer for the GPU than it takes to model it."""
        return self._always or self._waiting_s > self._sampling_s

    def waited(self, seconds: float) -> None:
        """How long one setting waited until the GPU was free for it."""
        with self._lock:
            self._waiting_s += (1 - _MEMORY) * (seconds - self._waiting_s)

    def modeled_us(self, plan: CompiledPlan, case: Case) -> float | None:
        """None: it cannot be modeled."""
        began = time.monotonic()
        traffic = self._sampler.traffic(plan, case)
        with self._lock:
            self._sampling_s += (1 - _MEMORY) * (time.monotonic() - began - self._sampling_s)
        if isinstance(traffic, Checked):
            return None
        return modeled_time(plan, traffic, target_for(self._sampler.arch)).total_us

    def counted(self, asked: int, left_out: int) -> None:
        with self._lock:
            self.asked, self.left_out = self.asked + asked, self.left_out + left_out


class Sieve:
    """The settings of one source, held against each other on one case."""

    def __init__(self, prefilter: Prefilter, case: Case, own: CompiledPlan) -> None:
        self._prefilter, self._case, self._own = prefilter, case, own
        self._own_us: float | None = None
        self._best_us = math.inf

    def behind(self, tried: Recording, settings: Sequence[Knobs]) -> dict[Knobs, float]:
        """Settings that are not worth measuring, with log(modeled time ÷ that of the source's own setting)."""
        if not self._prefilter.pays:
            return {}
        plans = {knobs: tried.plans[(self._case.name, knobs)] for knobs in settings}
        asked = {knobs: plan for knobs, plan in plans.items() if isinstance(plan, CompiledPlan)}
        first = [self._own] if self._own_us is None else []
        with ThreadPoolExecutor(max(1, len(asked) + len(first))) as pool:
            found = list(pool.map(lambda plan: self._prefilter.modeled_us(plan, self._case), [*first, *asked.values()]))
        if first:
            self._own_us = found.pop(0)
        if self._own_us is None:
            return {}
        modeled = {knobs: us for knobs, us in zip(asked, found, strict=True) if us is not None}
        self._best_us = min([self._best_us, self._own_us, *modeled.values()])
        left = {k: math.log(us / self._own_us) for k, us in modeled.items() if us > BEHIND * self._best_us}
        self._prefilter.counted(len(asked), len(left))
        return left
