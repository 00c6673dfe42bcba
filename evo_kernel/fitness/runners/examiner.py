"""What the GPU process does with a plan: check it against its references, time it, hold it against another.

Everything that one plan set needs is one request. A candidate's kernels never run while a reference lies readable on
the device: kernels first, comparison then, and freed memory is overwritten before the next kernel.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from evo_kernel.errors import PlanError
from evo_kernel.fitness import check, regimes
from evo_kernel.fitness.ceilings import benches
from evo_kernel.fitness.pairing import PairSettings
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.runners.clock import Buffers, Device, Launches, Metronome, disagreement, sample, sample_pairs
from evo_kernel.fitness.runners.stock import Arenas, Inputs, plan_bytes, size_of
from evo_kernel.fitness.timing import CLAIM, TIMING, TimingSettings, sets_needed, summarise
from evo_kernel.fitness.vault import Vault
from evo_kernel.tasks.task import Case, Input, Task
from evo_kernel.types import CheckResult, Status

Answer = dict[str, Any]
Plans = Callable[[int], CompiledPlan]
_CHECKED_SETS = 4  # the outputs of one of so many sets are compared after timing: a reference each is kept


@dataclass(frozen=True)
class Budget:
    """Shares of the GPU's memory that may be kept between requests, and what one check may hold at a time."""

    references: float = 0.15
    inputs: float = 0.10
    arenas: float = 0.15
    check_bytes: int = 8 << 30


class Refused(Exception):
    """A plan that failed, with its answer."""

    def __init__(self, status: Status, reason: str, error: float = float("inf")) -> None:
        super().__init__(reason)
        self.answer: Answer = {"status": status, "reason": reason, "error": error}


@dataclass
class _Ran:
    """One round of a check: two runs on the same inputs."""

    seed: int
    regime: str
    inputs: tuple[Input, ...]
    arenas: Sequence[Buffers]


class Examiner:
    """State of one GPU process beside the context. For one thread."""

    def __init__(
        self, task: Task, device: Device, settings: TimingSettings = TIMING, budget: Budget | None = None
    ) -> None:
        self.task, self.device, self.settings = task, device, settings
        self._budget = budget or Budget()
        total = device.total_bytes()
        self._vault = Vault(device.name, int(total * self._budget.references))
        self._inputs = Inputs(int(total * self._budget.inputs))
        self._arenas = Arenas(device.arena, int(total * self._budget.arenas))
        self._metronome = Metronome(device, settings)
        self._dirty = False
        self.bench_sizes: dict[str, int] = {}  # of the ceilings' benches, where not the usual ones
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    # --- requests ---------------------------------------------------------------------------------------------------

    def exam(
        self,
        plans: Plans,
        checks: Sequence[Answer],
        timings: Sequence[Answer],
        progress: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Checks, then timings, in order; the first that fails ends it, so answers may be fewer than questions.

        A check is {plan, case, rounds: [[seed, regime], ...]}; a timing {plan, case, seed, check, against_us}.
        """
        self.spent_s.clear()
        answer: Answer = {"checks": self._checks(plans, checks, progress), "timings": []}
        last = answer["checks"][-1] if checks else {"status": Status.PASSED}
        for part in timings if last["status"] == Status.PASSED else ():
            progress()
            last = self._examined(partial(self._with_launcher, plans, part, self._time))
            answer["timings"].append(last)
            if last["status"] != Status.PASSED:
                break
        answer["fatal"] = last.pop("fatal", False)
        if answer["timings"] and not answer["fatal"]:
            with self._phase("metronome"):
                answer["drift"] = self._metronome.tick()
        answer["spent_s"] = dict(self.spent_s)
        return answer

    def _examined(self, work: Callable[[], Answer]) -> Answer:
        """The answer of `work`, repeated when what it was held against turns out to be damaged."""
        found = self.guarded(work)
        if found["status"] == Status.WRONG and not self._intact():
            self.forget()  # an earlier kernel wrote into what is kept: this one is innocent
            found = self.guarded(work)
        return found

    def guarded(self, work: Callable[[], Answer]) -> Answer:
        """The answer of `work`; a plan's faults become answers, `fatal` where the context is lost."""
        try:
            try:
                return work()
            except torch.OutOfMemoryError:
                self.forget()  # perhaps it is our own stock that leaves no room
                return work()
        except Refused as refused:
            self._dirty = True  # its buffers were freed as they were
            return refused.answer
        except (*self.device.refused, PlanError) as fault:
            self._dirty = True
            return {"status": Status.REJECTED, "reason": str(fault)}
        except torch.OutOfMemoryError as error:
            self.forget()
            return {"status": Status.RUNTIME_ERROR, "reason": f"out of GPU memory: {str(error).splitlines()[0]}"}
        except self.device.broken as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = f"the GPU stopped: {lines[0]}"
            self._dirty = True
            return {"status": Status.RUNTIME_ERROR, "reason": reason, "fatal": not self.device.healthy()}

    def forget(self) -> None:
        """Give back what is kept."""
        for stock in (self._vault, self._inputs, self._arenas):
            stock.clear()
        with contextlib.suppress(*self.device.broken):
            self.device.release()

    def _intact(self) -> bool:
        """Whether no kernel wrote into the inputs and references that are kept."""
        try:
            return self._inputs.intact() and self._vault.intact()
        except self.device.broken:
            return True  # a lost context says so by itself

    def draw(self, case: Case, seed: int, regime: str = "nominal") -> tuple[Input, ...]:
        """The inputs of a case, kept for the next who asks."""

        def make() -> tuple[Input, ...]:
            generator = torch.Generator(self.device.name).manual_seed(seed)
            return regimes.apply(regime, self.task.inputs(case, generator, self.device.name))

        return self._inputs.of((case.name, seed, regime), make)

    # --- correctness ------------------------------------------------------------------------------------------------

    def _checks(self, plans: Plans, parts: Sequence[Answer], progress: Callable[[], None]) -> list[Answer | None]:
        """Answers up to the first failure. None: not known, since a later part of its group took the context down."""
        answers: list[Answer | None] = []
        for group in self._groups(plans, parts):
            answers += self._check_group(plans, group, progress)
            last = answers[-1]
            if last is not None and last["status"] != Status.PASSED:
                break
        return answers

    def _groups(self, plans: Plans, parts: Sequence[Answer]) -> Iterator[list[Answer]]:
        """Consecutive parts whose buffers fit into the memory of one check together."""
        group: list[Answer] = []
        size = 0
        for part in parts:
            try:
                more = 2 * plan_bytes(plans(part["plan"])) * len(part["rounds"])
            except PlanError:
                more = 0  # told when it is its turn
            if group and size + more > self._budget.check_bytes:
                yield group
                group, size = [], 0
            group.append(part)
            size += more
        if group:
            yield group

    def _check_group(self, plans: Plans, parts: Sequence[Answer], progress: Callable[[], None]) -> list[Answer | None]:
        """Kernels of all parts first, then the comparisons: freed memory is wiped once a group, not once a part."""
        if len(parts) == 1:
            progress()
            return [self._examined(partial(self._with_launcher, plans, parts[0], self._check))]
        failed: Answer | None = None
        with contextlib.ExitStack() as stack:
            ran: list[tuple[Answer, CompiledPlan, list[_Ran]]] = []
            for part in parts:
                progress()
                found = self.guarded(partial(self._run_part, stack, plans, part))
                if found["status"] != Status.PASSED:
                    failed = found
                    break
                ran.append((part, found["plan"], found["ran"]))
            if failed is not None and failed.get("fatal"):
                stack.pop_all()  # its buffers go with the context
                return [*(None for _ in ran), failed]
            answers = self._compare_group(plans, ran)
            if any(answer["status"] != Status.PASSED for answer in answers):
                return [*answers]
        return [*answers, failed] if failed is not None else [*answers]

    def _run_part(self, stack: contextlib.ExitStack, plans: Plans, part: Answer) -> Answer:
        """The kernels of one check; its buffers live as long as the stack."""
        plan, rounds = plans(part["plan"]), part["rounds"]
        with self._launcher(plan) as launcher, self._phase("run"):
            arenas = stack.enter_context(self._arenas.lent(plan, 2 * len(rounds)))
            ran = self._run_rounds(plan, launcher, part, rounds, arenas)
        return {"status": Status.PASSED, "plan": plan, "ran": ran}

    def _compare_group(self, plans: Plans, ran: Sequence[tuple[Answer, CompiledPlan, list[_Ran]]]) -> list[Answer]:
        """Up to the first failure, which is looked at again on its own where what it was held against is damaged."""
        answers: list[Answer] = []
        for part, plan, rounds in ran:
            with self._phase("compare"):
                found = self.guarded(partial(self._compared, plan, self.task.case(part["case"]), rounds))
            if found["status"] == Status.WRONG and not self._intact():
                self.forget()
                found = self.guarded(partial(self._with_launcher, plans, part, self._check))
            answers.append(found)
            if found["status"] != Status.PASSED:
                break
        return answers

    def _check(self, plan: CompiledPlan, launcher: Launches, part: Answer) -> Answer:
        """Every round: poisoned scratch, two runs that must agree, then the reference; as many at once as fit."""
        case = self.task.case(part["case"])
        at_once = max(1, self._budget.check_bytes // max(1, 2 * plan_bytes(plan)))
        rounds, worst = list(part["rounds"]), 0.0
        for first in range(0, len(rounds), at_once):
            some = rounds[first : first + at_once]
            with self._arenas.lent(plan, 2 * len(some)) as arenas:
                with self._phase("run"):
                    ran = self._run_rounds(plan, launcher, part, some, arenas)
                with self._phase("compare"):
                    worst = max(worst, self._compared(plan, case, ran)["error"])
        return {"status": Status.PASSED, "reason": "", "error": worst}

    def _run_rounds(
        self, plan: CompiledPlan, launcher: Launches, part: Answer, rounds: Sequence[Any], arenas: Sequence[Buffers]
    ) -> list[_Ran]:
        case = self.task.case(part["case"])
        ran = [
            self._run_twice(plan, launcher, case, seed, regime, arenas[2 * n : 2 * n + 2])
            for n, (seed, regime) in enumerate(rounds)
        ]
        self.device.synchronize()
        return ran

    def _compared(self, plan: CompiledPlan, case: Case, ran: Sequence[_Ran]) -> Answer:
        return {"status": Status.PASSED, "reason": "", "error": max(self._judge(plan, case, one) for one in ran)}

    def _run_twice(
        self, plan: CompiledPlan, launcher: Launches, case: Case, seed: int, regime: str, arenas: Sequence[Buffers]
    ) -> _Ran:
        inputs = self.draw(case, seed, regime)
        self._clean()
        for arena in arenas:
            fill(arena, plan, inputs)
            launcher.run(arena)
        return _Ran(seed, regime, inputs, arenas)

    def _judge(self, plan: CompiledPlan, case: Case, ran: _Ran) -> float:
        """The error of one round, in units of what is allowed. Raises Refused."""
        self._undisturbed(plan, ran.arenas, [ran.inputs] * len(ran.arenas))
        first, second = ([arena.tensor(view) for view in plan.plan.outputs] for arena in ran.arenas)
        if not self.task.tolerance.atomics and not _all_same(first, second):
            raise Refused(
                Status.WRONG, "two runs on the same inputs differ: a race, a read of memory nothing wrote, or atomics"
            )
        result = self._compare(case, ran.seed, ran.regime, ran.inputs, first)
        if not result.passed:
            raise Refused(Status.WRONG, result.reason, result.error)
        return result.error

    def _undisturbed(self, plan: CompiledPlan, arenas: Sequence[Buffers], inputs: Sequence[tuple[Input, ...]]) -> None:
        """No canary is broken and no input has changed. Raises Refused."""
        for arena in arenas:
            if (buffer := arena.broken_canary()) is not None:
                raise Refused(Status.WRONG, f"a kernel writes outside a buffer (near buffer {buffer} of the plan)")
        same: list[torch.Tensor] = []
        places: list[int] = []
        for arena, values in zip(arenas, inputs, strict=True):
            for position, (view, value) in enumerate(zip(plan.plan.inputs, values, strict=True)):
                if view is not None and isinstance(value, torch.Tensor):
                    same.append(_equal(arena.tensor(view), value))
                    places.append(position)
        changed = [place for place, equal in zip(places, _together(same), strict=True) if not equal]
        if changed:
            raise Refused(Status.WRONG, f"the kernel changes its input {changed[0]}")

    def _compare(
        self, case: Case, seed: int, regime: str, inputs: tuple[Input, ...], outputs: Sequence[torch.Tensor]
    ) -> CheckResult:
        """The verdict on outputs; called when the candidate's kernels have finished."""
        self._dirty = True
        made: list[bool] = []

        def make() -> tuple[check.Expected, ...]:
            made.append(True)
            return check.expect(self.task, inputs)

        with self._vault.open((case.name, seed, regime), make) as expected:
            result = check.compare(case.name, outputs, expected, self.task.tolerance)
        if made:  # a reference takes many times its own size to make, which would be wiped from now on
            self.device.wipe()
            self.device.release()
        return result

    def _clean(self) -> None:
        """Before a candidate's kernel: nothing of a reference is left in freed memory."""
        if self._dirty:
            with self._phase("wipe"):
                self.device.wipe()
            self._dirty = False

    # --- time -------------------------------------------------------------------------------------------------------

    def _time(self, plan: CompiledPlan, launcher: Launches, part: Answer) -> Answer:
        """Samples in µs over rotating inputs with a cold L2; with `check`, a timed launch's outputs are checked."""
        case, seed = self.task.case(part["case"]), int(part["seed"])
        count = self.sets(plan_bytes(plan))
        with self._arenas.lent(plan, count) as arenas:
            drawn = [self._loaded(plan, arena, case, seed + n) for n, arena in enumerate(arenas)]
            with self._phase("capture"):
                replays = self._captured(launcher, arenas)
            with self._phase("time"):
                poison = partial(_poison, plan, arenas)
                sampled = sample(self.device, replays, self.settings, part.get("against_us"), poison)
                state = self.device.state()
            with self._phase("compare"):
                used = min(len(sampled.samples_us), count)
                self._undisturbed(plan, arenas[:used], drawn[:used])
                if fault := disagreement(sampled, self.settings):
                    raise Refused(Status.REJECTED, fault)
                if part["check"]:
                    chosen = secrets.randbelow(min(used, _CHECKED_SETS))
                    self._right_when_timed(plan, case, seed + chosen, drawn[chosen], arenas[chosen])
            del replays
        return {
            "status": Status.PASSED,
            "reason": "",
            "samples_us": sampled.samples_us,
            "wall_share": sampled.wall_us / max(sampled.event_us, 1e-9),
            "sets": count,
            "state": state.as_data(),
        }

    def sets(self, size: int) -> int:
        return sets_needed(size, self.device.l2_bytes, self.device.free_bytes(), self.settings)

    def _loaded(self, plan: CompiledPlan, arena: Buffers, case: Case, seed: int) -> tuple[Input, ...]:
        inputs = self.draw(case, seed)
        fill(arena, plan, inputs)
        return inputs

    def _captured(self, launcher: Launches, arenas: Sequence[Buffers]) -> list[Callable[[], Any]]:
        """A graph an arena. The first launch is a plain one, so that a fault shows before a capture does."""
        self._clean()
        launcher.run(arenas[0])
        self.device.synchronize()
        return [self.device.capture(partial(launcher.run, arena), n == 0) for n, arena in enumerate(arenas)]

    def _right_when_timed(
        self, plan: CompiledPlan, case: Case, seed: int, inputs: tuple[Input, ...], arena: Buffers
    ) -> None:
        outputs = [arena.tensor(view) for view in plan.plan.outputs]
        result = self._compare(case, seed, "nominal", inputs, outputs)
        if not result.passed:
            raise Refused(Status.WRONG, f"right when checked, wrong when timed: {result.reason}", result.error)

    # --- pairs ------------------------------------------------------------------------------------------------------

    def pair(self, plans: Plans, part: Answer, settings: PairSettings) -> Answer:
        """Plan 0, the incumbent, and plan 1, the challenger, side by side: {case, seed, check}."""
        self.spent_s.clear()
        return self.guarded(partial(self._pair, plans, part, settings)) | {"spent_s": dict(self.spent_s)}

    def _pair(self, plans: Plans, part: Answer, settings: PairSettings) -> Answer:
        case, seed = self.task.case(part["case"]), int(part["seed"])
        both = [plans(0), plans(1)]
        count = self.sets(max(map(plan_bytes, both)))
        with contextlib.ExitStack() as stack:
            launchers = [stack.enter_context(self._launcher(plan)) for plan in both]
            lent = [stack.enter_context(self._arenas.lent(plan, count)) for plan in both]
            drawn = [
                [self._loaded(plan, arena, case, seed + n) for n, arena in enumerate(arenas)]
                for plan, arenas in zip(both, lent, strict=True)
            ]
            with self._phase("capture"):
                replays = [self._captured(launcher, arenas) for launcher, arenas in zip(launchers, lent, strict=True)]
            with self._phase("time"):
                rng = np.random.default_rng(secrets.randbits(64))
                comparison, taken = sample_pairs(self.device, replays[0], replays[1], rng, settings)
                state = self.device.state()
            with self._phase("compare"):
                for plan, arenas, inputs in zip(both, lent, drawn, strict=True):
                    self._undisturbed(plan, arenas, inputs)
                    if part["check"]:
                        self._right_when_timed(plan, case, seed, inputs[0], arenas[0])
            del replays
        return {
            "status": Status.PASSED,
            "reason": "",
            "comparison": comparison.as_data(),
            "median_us": [summarise([one[n] for one in taken]).median_us for n in (0, 1)],
            "state": state.as_data(),
        }

    # --- other work by the same clock -------------------------------------------------------------------------------

    def time_function(self, case: Case, function: Callable[..., Any], settings: TimingSettings) -> Answer:
        """A torch function on a case, by the clock of plans: what a baseline is."""
        size = size_of(self.draw(case, 0))
        sets = [self.draw(case, seed) for seed in range(self.sets(3 * size))]
        for _ in range(2):
            function(*sets[0])
        replays = [self.device.capture(partial(function, *inputs), n == 0) for n, inputs in enumerate(sets)]
        sampled = sample(self.device, replays, settings)
        self._dirty = True
        if fault := disagreement(sampled, settings):
            raise Refused(Status.REJECTED, fault)
        return {"status": Status.PASSED, "reason": "", "samples_us": sampled.samples_us}

    def ceilings(self, progress: Callable[[], None] = lambda: None) -> dict[str, float]:
        """What this GPU can do at most: see ceilings.py."""
        found = {"l2_bytes": float(self.device.l2_bytes)}
        for make in benches(self.device.name, **self.bench_sizes):
            progress()
            bench = make()
            sampled = sample(self.device, [self.device.capture(bench.work, True)], CLAIM)
            found[bench.name] = bench.value(sampled.median_us)
        return found

    # --- small parts ------------------------------------------------------------------------------------------------

    def _with_launcher(self, plans: Plans, part: Answer, work: Callable[..., Answer]) -> Answer:
        plan = plans(part["plan"])
        with self._launcher(plan) as launcher:
            return work(plan, launcher, part)

    @contextlib.contextmanager
    def _launcher(self, plan: CompiledPlan) -> Iterator[Launches]:
        with self._phase("load"):
            launcher = self.device.launcher(plan)
        try:
            yield launcher
            self.device.synchronize()
        finally:
            with contextlib.suppress(*self.device.broken):  # a lost context has nothing to unload
                launcher.close()

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s[name] += time.perf_counter() - began


def fill(arena: Buffers, plan: CompiledPlan, inputs: Sequence[Input]) -> None:
    """Copy inputs into the arena where the plan has them. Raises PlanError."""
    if len(inputs) != len(plan.plan.inputs):
        raise PlanError(f"the plan takes {len(plan.plan.inputs)} inputs, the task gives {len(inputs)}")
    for view, value in zip(plan.plan.inputs, inputs, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            target = arena.tensor(view)
            if target.shape != value.shape or target.dtype != value.dtype:
                raise PlanError(f"the plan takes {target.dtype} {tuple(target.shape)} where the task gives another")
            target.copy_(value)


def _poison(plan: CompiledPlan, arenas: Sequence[Buffers]) -> None:
    """What the samples do not write themselves must not look written."""
    for arena in arenas:
        arena.poison(plan)


def _equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Whether two tensors are bit-equal, NaN included, as a tensor that nobody has waited for."""
    if left.shape != right.shape:
        return torch.tensor(False, device=left.device)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return (left.view(kind) == right.view(kind)).all()


def _together(flags: Sequence[torch.Tensor]) -> list[bool]:
    """Many one-element tensors on the host after one wait."""
    return [bool(flag) for flag in torch.stack(list(flags)).tolist()] if flags else []


def _all_same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(_together([_equal(a, b) for a, b in zip(left, right, strict=True)]))
