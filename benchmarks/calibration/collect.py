"""Distinct plans of a task: recorded and sampled on the cores, measured on one GPU, a line each as soon as it is known.

A plan's traffic is sampled in a process of its own beside the others (a tenth of a second to a few: far longer than
measuring takes, and no GPU is needed), so that the constants can be fitted later with nothing recompiled.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.calibration.samples import Sample, as_line
from benchmarks.variants import walks, with_search_cases
from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.costmodel.facts import facts_of
from evo_kernel.fitness.costmodel.model import time_of
from evo_kernel.fitness.costmodel.targets import H200
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.tuning.proposals import find_knobs, too_large
from evo_kernel.knobs import apply_knobs
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Knobs, Source

RECORD_S, MEASURE_S, SAMPLE_S = 25.0, 10.0, 25.0
"""Deadlines of one recording or compile, of one measurement and of one sampling, seconds."""
STRUCTURES = 32
LARGEST_BYTES, LARGEST_FLOPS = 2.5e9, 3e11
"""Of a case made by scaling: what a naive kernel still runs in a fraction of a second."""
SLOWEST_US = 60_000.0
"""Plans whose modeled time is longer are not measured: ten launches of one take as long as fifty other plans."""


@dataclass(frozen=True)
class Variant:
    """A source with its knobs written in, to be measured on some cases."""

    structure: str
    knobs: Knobs
    source: Source
    cases: tuple[Case, ...]


@dataclass
class Tally:
    """What a collection came to."""

    rows: int = 0
    elapsed_s: float = 0.0
    out: Counter[str] = field(default_factory=Counter)  # plans left out, by why
    why: dict[str, str] = field(default_factory=dict)  # one example each
    device: str = ""


def widened(name: str, folder: Path) -> Task:
    """A built-in task whose search cases are all it has but the checks, and more sizes."""
    original = load(name)
    cases = [dict(c.sizes) for kind in (CaseKind.SEARCH, CaseKind.CONFIRM) for c in original.cases_of(kind)]
    cases += [sizes for sizes in scaled(cases) if _is_affordable(original, sizes)]
    return with_search_cases(original, cases, folder)


def scaled(cases: list[dict[str, int]]) -> list[dict[str, int]]:
    """Sizes beside the given ones: one dimension times 1/2, 3/4 or 2, in turn. Head dimensions keep their size."""
    factors, made = (0.5, 0.75, 2.0), []
    for position, sizes in enumerate(cases):
        names = [name for name in sizes if name in ("m", "n", "k", "s") and sizes[name] >= 64]
        for turn in range(2):
            name = names[(position + turn) % len(names)]
            new = {**sizes, name: int(sizes[name] * factors[(position + 2 * turn) % 3])}
            if new not in cases and new not in made:
                made.append(new)
    return made


def _is_affordable(task: Task, sizes: dict[str, int]) -> bool:
    case = Case("", CaseKind.SEARCH, sizes)
    return (task.bytes(case) or 0) <= LARGEST_BYTES and (task.flops(case) or 0) <= LARGEST_FLOPS


def drawn(task: Task, count: int, cases_each: int, seed: int) -> list[Variant]:
    """Up to `count` variants: structures in turn, each in many settings of its knobs, on a few cases of its own.

    So there are several settings of each structure on the same case: what a tuner has to choose among.
    """
    rng = np.random.default_rng(seed)
    shapes = walks(task, STRUCTURES, rng)
    cases = task.cases_of(CaseKind.SEARCH)
    order = [int(i) for _ in range(STRUCTURES * cases_each // len(cases) + 1) for i in rng.permutation(len(cases))]
    made: dict[str, Variant] = {}
    for turn in range(20 * count):
        if len(made) >= count:
            break
        number = turn % len(shapes)
        setting = _setting(shapes[number], rng) if turn >= len(shapes) else ()
        if too_large(setting):
            continue
        source = apply_knobs(shapes[number], setting)
        some = dict.fromkeys(order[number * cases_each : (number + 1) * cases_each])
        variant = Variant(f"{seed}.{number}", setting, source, tuple(cases[i] for i in some))
        made.setdefault(source.text, variant)
    return list(made.values())


def _setting(source: Source, rng: np.random.Generator) -> Knobs:
    """Some of a source's knobs at random: half of the time all of them, else each with one chance in two."""
    every = rng.random() < 0.5
    return tuple(
        sorted(
            (knob.name, int(rng.choice(knob.choices)))
            for knob in find_knobs(source)
            if not knob.name.endswith(".config") and (every or rng.random() < 0.5)
        )
    )


class Collector:
    """Measures variants of one task until the time is over. Every part may fail without ending the others."""

    def __init__(self, task: Task, device: str, out: Path, known: set[tuple[str, str, str]]) -> None:
        self.tally = Tally()
        self._task, self._device, self._out = task, device, out
        self._known = known  # (task, case, start of the source's hash): measured by an earlier call
        self._plans: set[tuple[str, str]] = set()
        self._best_us: dict[str, float] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def collect(self, variants: list[Variant], threads: int, end: float) -> Tally:
        """`end`: of `time.monotonic()`. What is in flight then is cut off."""
        began = time.monotonic()
        runner = open_runner(self._task, self._device, MEASURE_S)
        sampler = CpuRunner(self._task, 90, SAMPLE_S)
        compiler = Compiler(90, RECORD_S)
        recorder = Recorder(compiler, 90, RECORD_S)
        try:
            with ThreadPoolExecutor(4) as pool:
                for done in [pool.submit(part.start) for part in (runner, sampler, compiler, recorder)]:
                    done.result()
            self.tally.device = runner.environment("").device
            pool = ThreadPoolExecutor(threads)
            futures = [pool.submit(self._work, v, recorder, runner, sampler) for v in variants]
            wait(futures, timeout=max(0.0, end - time.monotonic()))
            self._over.set()
            pool.shutdown(wait=False, cancel_futures=True)
        finally:
            self._over.set()
            for part in (recorder, compiler, sampler, runner):
                part.close()
        wait(futures, timeout=10.0)
        self.tally.elapsed_s = time.monotonic() - began
        return self.tally

    def _work(self, variant: Variant, recorder: Recorder, runner: Runner, sampler: CpuRunner) -> None:
        try:
            self._variant(variant, recorder, runner, sampler)
        except EvoKernelError as error:
            self._leave_out("machine", str(error))
        except Exception:  # noqa: BLE001 (one variant: the others are still wanted)
            self._leave_out("bug", traceback.format_exc())

    def _variant(self, variant: Variant, recorder: Recorder, runner: Runner, sampler: CpuRunner) -> None:
        sha = variant.source.sha256[:12]
        cases = [case for case in variant.cases if (self._task.name, case.name, sha) not in self._known]
        if self._over.is_set() or not cases:
            return
        recording = recorder.record(variant.source, [record_case(self._task, case) for case in cases], [()])
        for case in cases:
            plan = recording.plans[(case.name, ())]
            if self._over.is_set():
                return
            if isinstance(plan, RecordFault):
                self._leave_out(f"record {plan.status}", plan.reason)
            elif self._is_new(case, plan):
                self._plan(variant, case, plan, runner, sampler)

    def _plan(self, variant: Variant, case: Case, plan: CompiledPlan, runner: Runner, sampler: CpuRunner) -> None:
        traffic = sampler.traffic(plan, case)
        if isinstance(traffic, Checked):
            return self._leave_out(f"sample {traffic.status}", traffic.reason)
        facts = facts_of(plan, traffic)
        if (modeled := time_of(facts, H200).total_us) > SLOWEST_US:
            return self._leave_out("far too slow", f"modeled {modeled:.0f} us")
        if self._over.is_set():
            return None
        found = runner.measure(plan, case, 17, checked=False, against_us=self._best_us.get(case.name))
        if isinstance(found, Checked):
            return self._leave_out(f"measure {found.status}", found.reason)
        row = Sample(
            task=self._task.name,
            case=case.name,
            source=variant.source.sha256[:12],
            structure=variant.structure,
            knobs=variant.knobs,
            plan=plan.hash[:12],
            us=found.median_us,
            iqr_us=found.iqr_us,
            n=found.n,
            facts=facts,
        )
        self._keep(row)
        return None

    def _keep(self, row: Sample) -> None:
        with self._lock:
            self._best_us[row.case] = min(row.us, self._best_us.get(row.case, row.us))
            self.tally.rows += 1
            with self._out.open("a") as file:
                file.write(as_line(row) + "\n")

    def _is_new(self, case: Case, plan: CompiledPlan) -> bool:
        with self._lock:
            if (case.name, plan.hash) in self._plans:
                return False
            self._plans.add((case.name, plan.hash))
            return True

    def _leave_out(self, what: str, why: str) -> None:
        if self._over.is_set():
            return  # what ends with us is nobody's fault
        with self._lock:
            self.tally.out[what] += 1
            self.tally.why.setdefault(what, why[-600:])
