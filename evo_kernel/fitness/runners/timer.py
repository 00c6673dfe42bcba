"""Times plans, torch functions and the benchmarks of a GPU's ceilings, all with the same clock."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.cuda_memory import Arena, checksum, other_poison, plan_bytes, size_of
from evo_kernel.fitness.runners.sampling import (
    Metronome,
    Paired,
    Sampled,
    TimedWork,
    disagreement,
    sample,
    sample_pairs,
)
from evo_kernel.fitness.runners.worker_state import (
    Answer,
    Disturbed,
    PlanFailed,
    Plans,
    WorkerState,
    equal_each,
    fill,
    refill,
)
from evo_kernel.fitness.timing.estimates import CLAIM, TIMING, TimingSettings, sets_needed
from evo_kernel.tasks.task import Case
from evo_kernel.types import Status

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import Block
    from evo_kernel.fitness.runners.cuda_driver import Launcher

_Taken = TypeVar("_Taken", Sampled, Paired)
_DOUBTS = 3  # repetitions if a kernel's clocks disagree while our own copies' agree


class Timer:
    """Times plans of one task. A timing is {plan, case, seed, check, against_us}."""

    def __init__(self, state: WorkerState, settings: TimingSettings = TIMING) -> None:
        self._state, self.settings = state, settings
        self.metronome = Metronome(state.device, settings)
        self.bench_sizes: dict[str, int] = {}  # of the ceiling benchmarks, if not the defaults

    def time(self, plan: CompiledPlan, launcher: Launcher, part: Answer) -> Answer:
        """Samples in µs over rotating buffers; with `check`, outputs are compared with the reference too."""
        case, seed = self._state.task.case(part["case"]), int(part["seed"])
        with self._state.phase("sets"):
            count = self.sets(plan_bytes(plan))
        with self._state.lent(plan, count + 1) as arenas:
            watched = CheckedTiming(self._state, plan, launcher, arenas, case, seed, part["check"])
            work = watched.captured()
            with self._state.phase("time"):
                sampled = self._sampled(work, self.settings, part.get("against_us"))
            with self._state.phase("state"):
                state = self._state.device.state()
            with self._state.phase("compare"):
                error = watched.compare()
            del work
        return {
            "status": Status.PASSED,
            "reason": "",
            "samples_us": sampled.samples_us,
            "wall_share": sampled.wall_us / max(sampled.event_us, 1e-9),
            "sets": count,
            "error": error,
            "state": state.as_data(),
        }

    def _sampled(self, work: TimedWork, settings: TimingSettings, against_us: float | None = None) -> Sampled:
        """Samples on which events and the wall clock agree.

        Raises PlanFailed if they keep disagreeing while our own copies' agree, Disturbed if those disagree too.
        """
        return self._undoubted(lambda: sample(self._state.device, work, settings, against_us), settings)

    def _undoubted(self, take: Callable[[], _Taken], settings: TimingSettings) -> _Taken:
        """What `take` returns, once its clocks agree. Raises as `_sampled`."""
        sampled = take()
        for _ in range(_DOUBTS):
            if not (fault := disagreement(sampled, settings)):
                return sampled
            if beside := self.metronome.disturbed(sampled.event_us):
                raise Disturbed(
                    f"another process uses this GPU: {fault}; for the judge's own copies: {beside}. Times are "
                    "unreliable then: end the other process (nvidia-smi names it), or choose another GPU by "
                    "CUDA_VISIBLE_DEVICES"
                )
            sampled = take()
        if fault := disagreement(sampled, settings):
            raise PlanFailed(Status.REJECTED, fault)
        return sampled

    def sets(self, size: int) -> int:
        return sets_needed(size, self._state.device.l2_bytes, self._state.device.free_bytes(), self.settings)

    def pair(self, plans: Plans, part: Answer) -> Answer:
        """Compare plan 0, the incumbent, with plan 1, the challenger: {case, seed, check}. Raises as `_sampled`."""
        case, seed = self._state.task.case(part["case"]), int(part["seed"])
        both = [plans(0), plans(1)]
        count = max(2, self.sets(max(map(plan_bytes, both))) // 2 * 2)
        with contextlib.ExitStack() as stack:
            launchers = [stack.enter_context(self._state.launcher(plan)) for plan in both]
            firsts = [stack.enter_context(self._state.lent(plan, 1)) for plan in both]
            overlaid = self._state.device.overlaid(both, count)
            watched, works = [], []
            for plan, launcher, first, arenas in zip(both, launchers, firsts, overlaid, strict=True):
                timing = CheckedTiming(
                    self._state, plan, launcher, [*arenas, *first], case, seed, part["check"], overlaid=True
                )
                watched.append(timing)
                works.append(timing.captured())
            with self._state.phase("time"):
                rng = np.random.default_rng(secrets.randbits(64))
                take = partial(sample_pairs, self._state.device, *works, rng)
                paired = self._undoubted(take, self.settings)
            with self._state.phase("compare"):
                for timing in watched:
                    timing.compare()
            del works, take
        return {
            "status": Status.PASSED,
            "reason": "",
            "comparison": paired.comparison.as_data(),
        }

    def time_function(self, case: Case, function: Callable[..., Any], settings: TimingSettings) -> Answer:
        """Time a torch function on a case, with the clock of plans: a baseline. Raises TaskError.

        A function that waits for the GPU, such as `torch.isin`, is called each time instead of replayed as a graph.
        """
        mutates = self._state.task.mutates
        size = size_of(self._state.draw(case, 0))
        drawn = [self._state.draw(case, seed) for seed in range(self.sets(3 * size))]
        sets = [own_copies(values, mutates) for values in drawn]
        for _ in range(2):
            function(*sets[0])
        calls = [partial(function, *inputs) for inputs in sets]
        replays: Sequence[Callable[[], Any]] = calls
        if not self._state.device.waits(calls[0]):
            replays = [self._state.device.capture(call, n == 0) for n, call in enumerate(calls)]
        self._state.dirty = True
        sums = [checksum(inputs) for inputs in drawn]

        def prepare(number: int) -> None:
            for position in mutates:
                target, value = sets[number][position], drawn[number][position]
                if isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor):
                    target.copy_(value)
            self._state.device.clear()

        def ran(numbers: Sequence[int]) -> None:
            if any(checksum(drawn[number]) != sums[number] for number in numbers):
                self._state.inputs.clear()
                raise TaskError(f"{case.name}: the baseline changes its inputs")

        sampled = self._sampled(TimedWork(replays, prepare, ran), settings)
        return {"status": Status.PASSED, "reason": "", "samples_us": sampled.samples_us}

    def ceilings(self, progress: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Measure this GPU's ceilings; see timing/ceilings.py."""
        values = {"l2_bytes": float(self._state.device.l2_bytes)}
        for make in benches(self._state.device.name, **self.bench_sizes):
            progress()
            bench = make()
            work = TimedWork.of_ours(self._state.device, [self._state.device.capture(bench.work, True)])
            sampled = sample(self._state.device, work, CLAIM)
            values[bench.name] = bench.value(sampled.median_us)
        return values


def own_copies(values: Sequence[Any], mutates: Collection[int]) -> list[Any]:
    """The inputs of a function, with copies of those that it changes."""
    return [v.clone() if n in mutates and isinstance(v, torch.Tensor) else v for n, v in enumerate(values)]


class CheckedTiming:
    """A plan over several sets of buffers with the inputs of `seed`; the last arena holds the result of the first
    launch.

    Every launch must write what the first one wrote, whatever its addresses, number and time. After every batch, each
    output is compared with the first, and inputs must be unchanged. If the task allows atomics, or torch operations are
    not deterministic, each launch that differs is compared with the reference. With `check` False nothing is compared.

    `overlaid`: another plan runs in the same memory, so inputs are copied there before every launch.
    """

    def __init__(
        self,
        state: WorkerState,
        plan: CompiledPlan,
        launcher: Launcher,
        arenas: Sequence[Arena],
        case: Case,
        seed: int,
        check: bool,
        overlaid: bool = False,
    ) -> None:
        self._overlaid = overlaid
        self._state, self._plan, self._launcher = state, plan, launcher
        *self._arenas, self._first = arenas
        self._case, self._seed, self._check = case, seed, check
        self._torch_results: Sequence[Block] = ()  # where captured torch operations have theirs
        self._may_differ = state.task.tolerance.atomics or bool(plan.plan.aten_nodes)
        with state.phase("fill"):
            self._inputs = state.draw(case, seed)
            for arena in arenas:
                fill(arena, plan, self._inputs)

    def captured(self) -> TimedWork:
        """One graph for each set. The first launch is not captured, so that a fault appears before a capture."""
        device, pool = self._state.device, self._state.device.pool()
        with self._state.phase("capture"):
            self._state.clean()
            self._launcher.prepare(self._first)
            self._launcher.run(self._first)
            self._state.ran(self._plan)
            device.synchronize()
            replays = [
                device.capture(partial(self._launcher.run, arena, in_place=True), number == 0, pool)
                for number, arena in enumerate(self._arenas)
            ]
            if self._plan.plan.aten_nodes:
                self._torch_results = device.free_blocks(pool)
        return TimedWork(replays, self._prepare, self._ran)

    def compare(self, *arenas: Arena, how_often: str = "") -> float | None:
        """Compare launches with the reference: by default the first one, after all others; returns the error of the
        last, None where nothing is to be compared. Raises PlanFailed, whose reason ends with `how_often`."""
        if not self._check:
            return None
        outputs = map(self._outputs, arenas or (self._first,))
        result = self._state.compare(self._case, self._seed, "nominal", self._inputs, *outputs)
        if not result.passed:
            why = f"right when checked, wrong when timed: {result.reason}{how_often}"
            raise PlanFailed(Status.WRONG, why, result.error)
        return result.error

    def _outputs(self, arena: Arena) -> list[torch.Tensor]:
        return [arena.tensor(view) for view in self._plan.plan.outputs]

    def _prepare(self, number: int) -> None:
        self._state.device.wipe(self._torch_results)
        arena = self._arenas[number]
        if self._overlaid:
            arena.set_canary(other_poison())
            fill(arena, self._plan, self._inputs)
        else:
            refill(arena, self._plan, self._inputs, self._state.task.mutates)
        self._launcher.prepare(arena, None)  # as in a check's second run: no kernel can tell that it is timed

    def _ran(self, numbers: Sequence[int]) -> None:
        """Raises PlanFailed."""
        with self._state.phase("look"):
            arenas = [self._arenas[number] for number in numbers]
            self._state.undisturbed(self._plan, [*arenas, self._first], [self._inputs] * (len(arenas) + 1))
            first_outputs = self._outputs(self._first)
            same = equal_each([(self._outputs(arena), first_outputs) for arena in arenas])
            others = [arena for arena, equal in zip(arenas, same, strict=True) if not equal]
            how_often = f" ({len(others)} of {len(arenas)} write other bits than the first)"
            if others and not self._may_differ:
                why = "two timed launches on the same inputs differ: a race, or worse"
                raise PlanFailed(Status.WRONG, why + how_often)
            if others:
                self.compare(*others, how_often=how_often)
                self._state.clean()


@dataclass(frozen=True)
class CeilingBenchmark:
    """One benchmark: a call of `work` does `amount` units."""

    name: str  # a name of `Ceilings.as_data`
    amount: float
    work: Callable[[], object]

    def value(self, us: float) -> float:
        """The ceiling for a time: units per second, or µs per unit for latencies."""
        return us / self.amount if self.name.endswith("_us") else self.amount / (us * 1e-6)


LAUNCHES = 64


def benches(device: str, copy_bytes: int = 1 << 30, side: int = 8192) -> list[Callable[[], CeilingBenchmark]]:
    """Constructors of the benchmarks, called one at a time so that each frees its memory before the next."""

    def copy() -> CeilingBenchmark:
        source = torch.randn(copy_bytes // 4, device=device)
        target = torch.empty_like(source)
        # An elementwise kernel, because the driver's device-to-device copy (`copy_`) reaches two thirds of its rate.
        return CeilingBenchmark("copy_bytes/s", 2.0 * copy_bytes, lambda: torch.neg(source, out=target))

    def product(name: str, dtype: torch.dtype, n: int, tf32: bool) -> Callable[[], CeilingBenchmark]:
        def make() -> CeilingBenchmark:
            left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            out = torch.empty(n, n, device=device, dtype=dtype)

            def work() -> None:
                before = torch.backends.cuda.matmul.allow_tf32
                torch.backends.cuda.matmul.allow_tf32 = tf32
                try:
                    torch.mm(left, right, out=out)
                finally:
                    torch.backends.cuda.matmul.allow_tf32 = before

            return CeilingBenchmark(name, 2.0 * n**3, work)

        return make

    def launches() -> CeilingBenchmark:
        one = torch.zeros(1, device=device)

        def work() -> None:
            for _ in range(LAUNCHES):
                one.add_(1.0)

        return CeilingBenchmark("launch_us", LAUNCHES, work)

    half = max(1, side // 2)
    return [
        copy,
        product("bf16_flop/s", torch.bfloat16, side, False),
        product("tf32_flop/s", torch.float32, half, True),
        product("fp32_flop/s", torch.float32, half, False),
        launches,
    ]
