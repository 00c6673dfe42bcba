"""One problem's part of a tree, grown by a judge: what a process of `train collect` does for a slice of time."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evo_kernel.app.train.problems import problem_of_a_tree
from evo_kernel.errors import EvoKernelError, InfraError, OperatorFailed, UserError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.timing.baselines import COMPILED
from evo_kernel.knobs import apply_knobs
from evo_kernel.tasks.first import first_kernel
from evo_kernel.types import CaseKind, Evaluation, Measurement, Purpose, Source, Status, Strategy
from operators.learning import collecting
from operators.learning.collecting import Frontier
from operators.learning.tree import evaluation_data, family_of, split_of, state_id, strategy_data, strategy_of
from operators.micro.coder import RewriteCoder

EVERY_KERNEL = 1e9  # tune_within: slow kernels are tuned too, for a gain compares parent and child treated alike

_JobRows = tuple[dict[str, Any] | None, dict[str, Any] | None]  # rows of a candidate that was judged, and of an edge


@dataclass(frozen=True)
class Want:
    """How to judge. `held_out`: families."""

    device: str = "auto"
    tune_plans: int = 8
    threads: int = 4
    seed: int = 0
    deadline_s: float = 30.0
    held_out: tuple[str, ...] = ()
    unconfined: bool = False


class Grower:
    """Grows one problem's rows; `grow` hands out work until a time, `drain` waits for what is in flight.

    `baselines`: what others found out, by case. What is not among them is timed here, but compiled references only in
    a problem's second slice: they take longer than a dozen kernels, and may never end.
    """

    def __init__(self, problem: str, want: Want, path: Path, baselines: Mapping[str, Mapping[str, float]]) -> None:
        self.problem, self._want, self._path = problem, want, path
        self.rows = collecting.read_rows(path)
        self._task = problem_of_a_tree(problem)
        self.name = self._task.name
        self._card, self._coder = self._task.card(), RewriteCoder()
        self._writing = threading.Lock()  # the judge's threads write baselines
        self._pool = ThreadPoolExecutor(want.threads, thread_name_prefix="grow")
        self._flying: dict[Future[_JobRows], str | None] = {}  # with the state that each started from; None: the root
        self._frontier = Frontier(np.random.default_rng([want.seed, len(self.rows.candidates), *self.name.encode()]))
        self._texts: dict[str, str] = {}  # state -> text
        self.trouble: list[str] = []
        if self.rows.slices != 1 and not any(COMPILED in times for times in baselines.values()):
            setattr(self._task.reference_function, "compiled_baseline", False)  # noqa: B010 (functions have no such field)
        settings = JudgeSettings(want.deadline_s, want.tune_plans, EVERY_KERNEL, want.seed, unconfined=want.unconfined)
        self._judge: PlanJudge = open_judge(self._task, device=want.device, settings=settings)
        try:
            self._begin(baselines)
        except BaseException:
            self._judge.close()
            raise

    def know(self, ceilings: Mapping[str, float]) -> None:
        """Take what the slice before measured of this GPU: every judge would measure it anew."""
        self._judge.baselines.ceilings.know(ceilings)

    @property
    def ceilings(self) -> Mapping[str, float]:
        """What this GPU can do at most, to be passed on; empty where it was not measured."""
        if not self.rows.candidates or self._judge.environment.kind != "measured":
            return {}
        found = self._judge.ceilings
        return found.as_data() if found.measured else {}

    def close(self, seconds: float = 0.0) -> None:
        """`seconds`: that it took in all, opening too. What is in flight is lost."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._write({"kind": "slice", "seconds": seconds})
        self._judge.close()

    def grow(self, until: float) -> bool:
        """Judge until that time (of time.monotonic); whether there would be more to do."""
        if not self.rows.candidates and not self._flying:
            self._flying[self._pool.submit(self._root)] = None
        while time.monotonic() < until:
            while len(self._flying) < self._want.threads and (job := self._frontier.next()) is not None:
                self._flying[self._pool.submit(self._tried, *job)] = job[0]
            if not self._flying:
                return False
            self._take(until)
        return True

    def drain(self, until: float) -> bool:
        """Wait for what is in flight, until that time at most; whether nothing is left."""
        while self._flying and time.monotonic() < until:
            self._take(until)
        return not self._flying

    # -- what is known ------------------------------------------------------------------------------------------------

    def _begin(self, baselines: Mapping[str, Mapping[str, float]]) -> None:
        environment = self._judge.environment
        other = [one for one in self.rows.environments.values() if one.key != environment.key]
        if other:
            raise UserError(
                f"{self._path} was collected in {other[0].label} ({other[0].torch}, {other[0].triton}, driver "
                f"{other[0].driver}), and this is {environment.label}: collect with another --out."
            )
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")  # after a line that a killed run left torn
        if not self.rows.environments:
            family = family_of(self.name.partition("@")[0])
            names = {"name": self.name, "task": self.name.partition("@")[0], "family": family}
            split = split_of(family, self._want.held_out)
            self._write({"kind": "problem", **names, "split": split, "card": asdict(self._card)})
            self._write({"kind": "environment", "key": environment.key, "environment": asdict(environment)})
        self._judge.baselines.on_baselines = lambda case, times, faults: self._write(
            {"kind": "baselines", "case": case, "us": dict(times)}
        )
        for case in self._task.cases_of(CaseKind.SEARCH):
            if COMPILED in (times := baselines.get(case.name, {})):
                known = Measurement(case.name, "", 1.0, 0.0, 0, 1.0, 1.0, times)
                self._judge.baselines.know(known)
        self._replay()

    def _replay(self) -> None:
        """The frontier as earlier slices left it."""
        tried: dict[str, set[str]] = {}
        for parent, key in self.rows.edges:
            tried.setdefault(parent, set()).add(key)
        for row in self.rows.candidates.values():
            if row["status"] == Status.PASSED:
                self._add(row, int(row["depth"]), tried)

    def _add(self, row: Mapping[str, Any], depth: int, tried: Mapping[str, set[str]]) -> None:
        name = state_id(self.name, row["text"])
        self._texts[name] = row["text"]
        left = (one for one in map(strategy_of, row["offers"]) if one.key not in tried.get(name, ()))
        self._frontier.add(name, float(row["log_us"]), depth, tuple(left))

    def _take(self, until: float) -> None:
        """Wait for a job, until that time at most, and write down what came of it."""
        done, _ = wait(self._flying, max(0.0, until - time.monotonic()), FIRST_COMPLETED)
        for future in done:
            parent = self._flying.pop(future)
            try:
                row, edge = future.result()
            except Exception as error:  # noqa: BLE001 (one job: the others are still wanted)
                known = isinstance(error, EvoKernelError)
                self.trouble.append(str(error)[:300] if known else "".join(traceback.format_exception(error))[-600:])
                continue
            if row is not None and row["sha"] not in self.rows.candidates:
                depth = 0 if parent is None else self._frontier.depth(parent) + 1
                self._write(row | {"depth": depth} | ({"root": True} if parent is None else {}))
                if row["status"] == Status.PASSED:
                    self._add(row, depth, {})
            if edge is not None:
                self._write(edge)

    # -- judging, in threads ------------------------------------------------------------------------------------------

    def _root(self) -> _JobRows:
        return self._judged(first_kernel(self._task)), None

    def _tried(self, parent: str, strategy: Strategy) -> _JobRows:
        edge = {"kind": "edge", "parent": parent, "strategy": strategy_data(strategy)}
        try:
            source = Source(self._texts[parent])
            child = Source(self._coder.implement(source, strategy))
        except OperatorFailed as failure:
            return None, edge | {"sha": None, "reason": str(failure)[:200]}
        known = child.sha256 in self.rows.candidates
        return None if known else self._judged(child), edge | {"sha": child.sha256}

    def _judged(self, source: Source) -> dict[str, Any]:
        return self._row(source, self._evaluated(source))

    def _evaluated(self, source: Source) -> Evaluation:
        """Raises InfraError where the machine failed twice."""
        reason = ""
        for _ in range(2):
            try:
                found = self._judge.evaluate(source, Purpose.SCORE)
                if found.status is not Status.INFRA_ERROR:
                    return found
                reason = found.reason
            except InfraError as error:
                reason = str(error)
        raise InfraError(reason)

    def _row(self, source: Source, found: Evaluation) -> dict[str, Any]:
        plans = sorted({(case, plan[:16]) for case, _, plan in found.plans})
        row: dict[str, Any] = {
            "kind": "candidate", "sha": source.sha256, "status": str(found.status), "reason": found.reason[:300],
            "plans": plans, "settings": len({knobs for _, knobs, _ in found.plans}),
            "evaluations": sum(found.charged.values()), "gpu_s": found.gpu_s, "wall_s": found.wall_s,
        }  # fmt: skip
        if found.passed:
            text = apply_knobs(source, found.knobs).text
            offers = self._coder.offer(Source(text), self._card)
            row |= {
                "text": text, "log_us": found.log_us, "evaluation": evaluation_data(found),
                "offers": [strategy_data(one) for one in offers],
            }  # fmt: skip
        return row

    def _write(self, row: dict[str, Any]) -> None:
        """To the file, flushed, and to what is known."""
        text = collecting.line(row)
        with self._writing:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
            self.rows.take(row)
