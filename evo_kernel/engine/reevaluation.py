"""Evaluations of kernels that are known: elites tuned deeper or measured again, where noise or time leave room."""

from __future__ import annotations

from collections.abc import Callable

from evo_kernel.budget import Spent
from evo_kernel.engine.session import RunSession
from evo_kernel.types import Purpose

DEEPER = 4
"""So many times as many knob settings as usual are tried of elites when nothing new is left to try."""


class Reevaluation:
    """Thread-safe."""

    def __init__(self, run: RunSession) -> None:
        self._run = run
        self._remeasured = 0
        self._deepened: set[int] = set()  # elites that were tuned deeper
        self._settled: set[int] = set()  # elites that were measured again, at the end
        self._measuring: set[int] = set()  # candidates that are being measured again

    def use_what_is_left(self) -> None:
        """Spend an evaluation on what is known, wait for a verdict that may bring news, or end the run."""
        if not self._run.news.idle():
            return
        with self._run.lock:
            work = self._next_of_elites()
        if work is None:
            if self._run.news.idle(wholly=True) and self._run.population.dry():
                self._run.stop(self._nothing_left(), "barren")
            return
        if reached := self._run.ledger.reserve():
            self._run.stop(reached, "budget")
            return
        cost = Spent()
        try:
            with self._run.news.at("known"):
                cost = work()
        finally:
            self._run.ledger.settle(cost)

    def _next_of_elites(self) -> Callable[[], Spent] | None:
        """Tune the elite of a cell deeper, each once; then measure each again, where times are measured."""
        elites = self._run.population.elites()
        for one in elites:
            if one.candidate not in self._deepened:
                self._deepened.add(one.candidate)
                return lambda: self._run.judge_and_tell(one, Purpose.SCORE, new=False, effort=DEEPER)
        for one in elites if self._run.judge.environment.kind == "measured" else ():
            if one.candidate not in self._settled:
                self._settled.add(one.candidate)
                scored = self._run.population.relative(one.candidate)
                return lambda: self._run.judge_and_tell(one, Purpose.SCORE, scored, remeasure=True)
        return None

    def _nothing_left(self) -> str:
        again = f", {len(self._settled)} measured again" if self._settled else ""
        return (
            "nothing is left to try: every strategy was tried on every parent, and every crossing; "
            f"{len(self._deepened)} elites tuned deeper{again}. What would help: a language model (--model), templates,"
            " other roots (--seed, --start-from), more strategies"
        )

    def remeasure(self) -> Spent:
        """Measure an elite again, or one that only looks faster, as far as the share of the budget for that goes."""
        with self._run.lock:
            if self._remeasured >= self._run.settings.remeasured * sum(self._run.statuses.values()):
                return Spent()
            recorded = self._run.population.unsettled()
            if recorded is None or recorded.candidate in self._measuring:
                return Spent()
            self._remeasured += 1
            self._measuring.add(recorded.candidate)
        relative = self._run.population.relative(recorded.candidate)
        try:
            return self._run.judge_and_tell(recorded, Purpose.SCORE, relative, remeasure=True)
        finally:
            with self._run.lock:
                self._measuring.discard(recorded.candidate)
