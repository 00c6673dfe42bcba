"""Transitions that nobody has seen, judged when a walk comes to them: the other end of `replay.Overlay`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Judge, Knobs, Purpose, Source, Strategy
from operators.learning.tree import Edge, Problem, State, seen_of, state_id
from operators.macro import catalogue
from operators.macro.features import context
from operators.micro.coder import RewriteCoder


class LiveJudge:
    """Carries a strategy out with the offline rewriter and asks a judge of the problem's task. Thread-safe.

    `apply_knobs` writes a setting of the knobs into a source (evo_kernel.fitness.knobs.apply_knobs). Times are compared
    with those of the tree: only a judge in the same environment makes sense of them, so any other is refused.
    """

    def __init__(self, problem: Problem, judge: Judge, apply_knobs: Callable[[Source, Knobs], Source]) -> None:
        self._problem, self._judge, self._apply_knobs = problem, judge, apply_knobs
        self._coder = RewriteCoder()

    def transition(self, state: State, strategy: Strategy) -> tuple[Edge, State | None]:
        """See `replay.Live`. Raises InfraError where the machine failed, ValueError in another environment."""
        if state.evidence.environment.key != self._judge.environment.key:
            was, now = state.evidence.environment.label, self._judge.environment.label
            raise ValueError(f"the state was judged in another environment ({was}; this is {now}, or other versions)")
        try:
            text = self._coder.implement(Source(state.text), strategy, self._problem.card, np.random.default_rng(0))
        except OperatorFailed:
            return Edge(state.id, strategy.key, None, False, None, 0.0), None
        found = self._judge.evaluate(Source(text), Purpose.SCORE)
        if not found.passed:
            return Edge(state.id, strategy.key, found.status, False, None, 0.0), None
        source = self._apply_knobs(Source(text), found.knobs)
        path = (*state.path, strategy)
        child = State(
            state_id(self._problem.name, source.text), state.task, state.family, state.split, source.text, (), found,
            found.log_us, len(path), self._coder.offer(source, self._problem.card), path,
        )  # fmt: skip
        child = replace(child, context=context(seen_of(self._problem.card, child)))
        witnessed = catalogue.witnessed(strategy, state.evidence, found)
        return Edge(state.id, strategy.key, found.status, witnessed, child.id, state.log_us - child.log_us), child
