"""One problem's part of a tree, grown in a population: what `train collect` does for a slice of time."""

from __future__ import annotations

import contextlib
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

from evo_kernel.app.compose import kept_baselines, prepared
from evo_kernel.app.external_session import ExternalSession, TellResult
from evo_kernel.app.train.packing import grown_of
from evo_kernel.app.train.problems import problem_of_a_tree
from evo_kernel.config import Config, JudgeConfig
from evo_kernel.errors import EvoKernelError, UserError
from evo_kernel.fitness.timing.baselines import COMPILED
from evo_kernel.judge_place import LOCAL
from evo_kernel.tasks.task import Task
from evo_kernel.types import Environment, Proposal, Source, Strategy
from operators.learning.collecting import Frontier
from operators.learning.tree import state_id
from operators.micro.coder import RewriteCoder
from populations.reading import PopulationReader

EVERY_KERNEL = 1e9  # tune_within: slow kernels are tuned too, for a gain compares parent and child treated alike
DEADLINE_S = 30.0  # of one recording, one compile, one check
AGAIN_S = 0.2  # before the judge is asked again where the machine failed
OPERATOR = "collect"


def judging(device: str, tune_plans: int, seed: int, unconfined: bool, at: str = LOCAL) -> Config:
    """How every problem's kernels are judged."""
    judge = JudgeConfig(
        at=at, deadline_s=DEADLINE_S, tune_plans=tune_plans, tune_within=EVERY_KERNEL, unconfined=unconfined
    )
    return Config(device=device if at == LOCAL else "auto", seed=seed, judge=judge, first="auto")  # type: ignore[arg-type]


class Grower:
    """Grows one problem's population; `grow` hands out work until a time, `drain` waits for what is in flight.

    Baselines are timed here, but compiled references only in a problem's second slice: they take longer than a dozen
    kernels, and may never end. Raises UserError.
    """

    def __init__(self, problem: str, config: Config, threads: int, path: Path) -> None:
        task = problem_of_a_tree(problem)
        earlier = _left_for_later(task, path)
        self.name, self._threads = task.name, threads
        self._card, self._coder = task.card(), RewriteCoder()
        self.trouble: list[str] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grow")
        self._flying: set[Future[TellResult]] = set()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            parts = opening.enter_context(prepared(config, task, path, create=None))
            self.population, environment = parts.population, parts.judge.environment
            if others := [one for one in earlier if one.key != environment.key]:
                raise UserError(
                    f"{path} was collected in {others[0].label} ({others[0].torch}, {others[0].triton}, driver "
                    f"{others[0].driver}), and this is {environment.label}: collect with another --out."
                )
            self._session = ExternalSession(parts, self.trouble.append, AGAIN_S)
            parts.judge.baselines.on_baselines = kept_baselines(self.population, lambda line: None)
            self._open = opening.pop_all()
        with PopulationReader(path) as reader:
            tree = grown_of(reader).tree
        self._frontier = Frontier(np.random.default_rng([config.seed, tree.candidates, *self.name.encode()]))
        self._numbers: dict[str, int] = {}  # state -> the candidate that it is known by
        for number in range(self.population.counters().candidates, 0, -1):
            self._numbers[state_id(self.name, self.population.relative(number).source.text)] = number
        pending = self.population.pending()
        begun = {(one.brief.parent.candidate, one.proposal.strategy) for one in pending}
        for state in tree.states.values():
            number, known = self._numbers[state.id], tree.edges(state.id)
            left = (one for one in state.offers if one.key not in known and (number, one) not in begun)
            self._frontier.add(state.id, state.log_us, state.depth, tuple(left))
        for recorded in pending:
            self._flying.add(self._pool.submit(self._session.judge, recorded))

    def close(self) -> None:
        """What is in flight is lost, but for its source."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._open.close()

    def grow(self, until: float) -> bool:
        """Judge until that time (of time.monotonic); whether there would be more to do."""
        while time.monotonic() < until:
            while len(self._flying) < self._threads and (job := self._frontier.next()) is not None:
                self._flying.add(self._pool.submit(self._carried_out, *job))
            if not self._flying:
                return False
            self._take(until)
        return True

    def drain(self, until: float) -> bool:
        """Wait for what is in flight, until that time at most; whether nothing is left."""
        while self._flying and time.monotonic() < until:
            self._take(until)
        return not self._flying

    # -- within -------------------------------------------------------------------------------------------------------

    def _take(self, until: float) -> None:
        """Wait for a job, until that time at most."""
        done, self._flying = wait(self._flying, max(0.0, until - time.monotonic()), FIRST_COMPLETED)
        for future in done:
            if (error := future.exception()) is not None:  # one job: the others are still wanted
                known = isinstance(error, EvoKernelError)
                self.trouble.append(str(error)[:300] if known else "".join(traceback.format_exception(error))[-600:])
            else:
                self._add(future.result())

    def _add(self, told: TellResult) -> None:
        """What passed, to the frontier; of a state that is known the depth alone counts."""
        if told.evaluation.passed:
            number = told.recorded.candidate
            relative = self.population.relative(number)
            state = state_id(self.name, relative.source.text)
            self._numbers.setdefault(state, number)
            offers = self._coder.offer(relative.source, self._card)
            self._frontier.add(state, told.evaluation.log_us, relative.generation, offers)

    def _carried_out(self, state: str, strategy: Strategy) -> TellResult:
        """In a thread. Raises OperatorFailed where the coder cannot make a child."""
        parent = self._numbers[state]
        child = Source(self._coder.implement(self.population.relative(parent).source, strategy))
        return self._session.submit(self.population.ask(parent=parent), Proposal(child, OPERATOR, strategy))


def _left_for_later(task: Task, path: Path) -> list[Environment]:
    """Where kernels of a problem were judged so far. Its compiled reference is left out, but in the second slice."""
    slices, timed, judged = 0, False, list[Environment]()
    if path.exists():
        with PopulationReader(path) as reader:
            sessions, boards = reader.sessions(), reader.state().boards
            slices, timed = len(sessions), any(COMPILED in times for times in reader.baselines().values())
            judged = [one.environment for one in sessions if one.environment.key in boards]
    if slices != 1 and not timed:
        setattr(task.reference_function, "compiled_baseline", False)  # noqa: B010 (functions have no such field)
    return judged
