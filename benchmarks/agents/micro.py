"""The micro part: strategies carried out by a model; what it writes is judged here, on this machine's device."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.agents.macro import brief_of
from benchmarks.agents.notebook import NOBODY, Counted, Notebook, Row
from benchmarks.agents.situations import Action, Situation, in_turn
from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.tasks.loading import load
from evo_kernel.types import Evaluation, Purpose, Source, Step
from operators.macro import catalogue
from operators.micro.coder import Job
from operators.micro.llm_coder import LlmCoder
from operators.micro.session import SessionLimits

REPAIRS = 2
FASTER = 0.01  # log gain that counts as faster: above the noise of the clock


@dataclass(frozen=True)
class Pair:
    """A strategy on a parent, and what came of the rewriter's version of it."""

    situation: Situation
    action: Action

    @property
    def id(self) -> str:
        return f"{self.situation.id} {self.action.strategy.key}"


def pairs(found: Sequence[Situation], seed: int = 0) -> list[Pair]:
    """Actions that the rewriter carried out rightly and with a witness; strategies of each task in turn, drawn."""
    every = [Pair(one, act) for one in found for act in one.actions if act.log_gain is not None and act.witnessed]
    drawn = [every[int(at)] for at in np.random.default_rng(seed).permutation(len(every))]
    return in_turn(((pair.situation.task.name, pair.action.strategy.name), pair) for pair in drawn)


def ask(found: Sequence[Pair], model: Counted, notebook: Notebook, device: str, width: int) -> None:
    """Each pair that is not known yet, one task after the other, so that one judge is open."""
    known = notebook.items("micro")
    left = [pair for pair in found if pair.id not in known]
    settings = JudgeSettings(deadline_s=30.0, tune_plans=0)
    for name in dict.fromkeys(pair.situation.task.name for pair in left):
        mine = [pair for pair in left if pair.situation.task.name == name]
        with open_judge(load(name), device=device, settings=settings) as judge, ThreadPoolExecutor(width) as pool:
            for done in [pool.submit(_written, pair, model, notebook, judge) for pair in mine]:
                done.result()


def _written(pair: Pair, model: Counted, notebook: Notebook, judge: PlanJudge) -> None:
    if not model.left:
        return
    one, strategy = pair.situation, pair.action.strategy
    coder = LlmCoder(model, limits=SessionLimits(edits=2, repairs=REPAIRS))
    row: Row = {
        "kind": "item", "part": "micro", "id": pair.id, "judged": judge.environment.kind,
        "reference": pair.action.value, "applied": True, "correct": False, "witnessed": False, "log_gain": None,
        "reason": "", "answers": 0,
    }  # fmt: skip

    def probe(source: Source) -> Evaluation:
        return judge.evaluate(source, Purpose.PROBE)

    try:
        coded = coder.carry_out(Job(one.source, strategy, brief_of(one, one), probe))
    except OperatorFailed as failure:
        if failure.reason.startswith(tuple(f"the model failed ({kind})" for kind in NOBODY)):
            return  # nobody answered: asked again in a later session
        row |= {"applied": _applied(failure.steps), "reason": failure.reason[:500], "answers": len(failure.calls)}
        notebook.write(row)
        return
    row |= {"answers": len(coded.calls), "text": coded.text}
    notebook.write(row | _outcome(judge, pair, Source(coded.text)))


def _outcome(judge: PlanJudge, pair: Pair, child: Source) -> Row:
    """Correct on every check, seen in the plan, and its log gain over the parent: as this machine's judge sees it."""
    parent = judge.evaluate(pair.situation.source, Purpose.SCORE)
    found = judge.evaluate(child, Purpose.SCORE)
    if not parent.passed or not found.passed:
        return {"reason": (found.reason or parent.reason)[:500], "correct": found.passed}
    seen = catalogue.witnessed(pair.action.strategy, parent, found)
    return {"correct": True, "witnessed": seen, "log_gain": parent.log_us - found.log_us}


def _applied(steps: Sequence[Step]) -> bool:
    """Whether any answer could be applied to the source, whatever came of it."""
    return any(not step.detail.startswith(("format", "the model failed")) for step in steps)
