"""The micro part: strategies carried out by a model, with parts of its prompt left out in turn; and faults repaired.

What a model writes is judged here, on this machine's device: measured on a GPU, modeled without one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.agents.measuring import EVERY_KERNEL, paired
from benchmarks.agents.notebook import NOBODY, Counted, Notebook, Row
from benchmarks.agents.problems import Planted
from benchmarks.agents.regret import Action, Situation
from benchmarks.agents.thinking import brief_of, prompts_of
from benchmarks.agents.truth import gain_of
from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Environment, Evaluation, Purpose, Source, Step
from operators.llm.base import Model
from operators.macro import catalogue
from operators.micro.coder import Job
from operators.micro.faults import ADVICE, fault_of
from operators.micro.llm_coder import LlmCoder
from operators.micro.session import Limits, Opening, Session
from operators.prompts.parts import Part, Switches, without_middle
from operators.prompts.writer import Prompts, source_part, user

PAIRS = 60
REPAIRS = 2
VARIANTS: Mapping[str, Switches] = {
    "full": Switches(),
    "no hierarchy": Switches(hierarchy=False),
    "no guide": Switches(guide=False),
    "no evidence": Switches(evidence=False),
}
CATEGORY, NO_CATEGORY = "with category", "no category"


@dataclass(frozen=True)
class Pair:
    """A strategy on a parent, and what came of the rewriter's version of it."""

    situation: Situation
    action: Action

    @property
    def id(self) -> str:
        return f"{self.situation.id} {self.action.strategy.key}"


def pairs(found: Sequence[Situation], count: int = PAIRS, seed: int = 0) -> list[Pair]:
    """Actions that the rewriter carried out rightly and with a witness, strategies and tasks as varied as they come.

    An order that a larger count only adds to; no two of the same strategy on one task before each has had its turn.
    """
    rng = np.random.default_rng(seed)
    every = [Pair(one, action) for one in found for action in one.actions if action.gain and action.witnessed]
    place: dict[tuple[str, str], int] = {}
    ranked = []
    for at in rng.permutation(len(every)):
        pair = every[int(at)]
        key = (pair.situation.task.name, pair.action.strategy.name)
        place[key] = place.get(key, -1) + 1
        ranked.append((place[key], int(at), pair))
    return [pair for _, _, pair in sorted(ranked, key=lambda entry: entry[0])][:count]


@dataclass(frozen=True)
class Where:
    """How what a model wrote is judged."""

    device: str
    tune_plans: int
    width: int


def write(found: Sequence[Pair], model: Model, notebook: Notebook, limit: int, where: Where) -> None:
    """Every variant of each pair, as far as `limit` calls go."""
    counted = Counted(model, notebook, "micro", limit)
    jobs = [(pair, name) for pair in found for name in VARIANTS]
    jobs = [(pair, name) for pair, name in jobs if f"{pair.id} {name}" not in notebook.items("micro")]
    _by_task(
        [(pair.situation.task.name, partial(_written, pair, name, counted, notebook)) for pair, name in jobs], where
    )


def repair(planted: Sequence[Planted], model: Model, notebook: Notebook, limit: int, where: Where) -> None:
    """Each fault with its category told and without, as far as `limit` calls go."""
    counted = Counted(model, notebook, "repair", limit)
    jobs = [(one, variant) for one in planted for variant in (CATEGORY, NO_CATEGORY)]
    jobs = [(one, variant) for one, variant in jobs if f"{one.id} {variant}" not in notebook.items("repair")]
    _by_task([(one.task, partial(_repaired, one, variant, counted, notebook)) for one, variant in jobs], where)


# -- one task after the other, so that one judge is open -------------------------------------------------------------


class Here:
    """A judge of one task, and parents as it sees them."""

    def __init__(self, judge: PlanJudge, task_name: str) -> None:
        self.judge, self.task = judge, load(task_name)
        self._known: dict[str, Evaluation] = {}

    def score(self, source: Source) -> Evaluation:
        if source.sha256 not in self._known:
            self._known[source.sha256] = self.judge.evaluate(source, Purpose.SCORE)
        return self._known[source.sha256]

    def probe(self, source: Source) -> Evaluation:
        return self.judge.evaluate(source, Purpose.PROBE)

    def gain(self, parent: Evaluation, before: Source, child: Evaluation, after: Source) -> tuple[float, float, float]:
        """Parent ÷ child with its interval, each in its tuned setting, side by side."""
        first, second = (
            self.judge.plans(source, evaluation.knobs, [CaseKind.SEARCH])
            for source, evaluation in ((before, parent), (after, child))
        )
        timed = paired(self.judge, self.task, first, second)
        return gain_of({"pairs": timed, "log_gain": parent.log_us - child.log_us})


def _by_task(jobs: Sequence[tuple[str, Callable[[Here], None]]], where: Where) -> None:
    for name in dict.fromkeys(task for task, _ in jobs):
        mine = [job for task, job in jobs if task == name]
        with _opened(name, where) as here, ThreadPoolExecutor(where.width) as pool:
            for done in [pool.submit(job, here) for job in mine]:
                done.result()


@contextlib.contextmanager
def _opened(name: str, where: Where) -> Iterator[Here]:
    settings = JudgeSettings(deadline_s=30.0, tune_plans=where.tune_plans, tune_within=EVERY_KERNEL)
    with open_judge(load(name), device=where.device, settings=settings) as judge:
        yield Here(judge, name)


# -- micro -----------------------------------------------------------------------------------------------------------


def _written(pair: Pair, variant: str, model: Counted, notebook: Notebook, here: Here) -> None:
    if not model.left:
        return None
    one, strategy = pair.situation, pair.action.strategy
    coder = LlmCoder(model, prompts_of(one, switches=VARIANTS[variant]), Limits(edits=2, repairs=REPAIRS))
    job = Job(one.source, strategy, brief_of(one, one), here.probe, np.random.default_rng(0))
    assert pair.action.gain is not None
    row: Row = {
        "kind": "item", "part": "micro", "id": f"{pair.id} {variant}", "pair": pair.id, "variant": variant,
        "judged": here.judge.environment.kind, "reference": pair.action.gain, "reference_modeled":
        pair.action.modeled_gain, "applied": True, "correct": False, "witnessed": False, "faster": False,
        "reason": "", "answers": 0,
    }  # fmt: skip
    try:
        coded = coder.carry_out(job)
    except OperatorFailed as failure:
        if unanswered(failure.reason):
            return None
        row |= {"applied": _applied(failure.steps), "reason": failure.reason[:500], "answers": len(failure.calls)}
        return notebook.write(row)
    child = Source(coded.text)
    row |= {"answers": len(coded.calls), "sha": child.sha256, "text": coded.text}
    notebook.write(row | _outcome(here, pair, child))
    return None


def _outcome(here: Here, pair: Pair, child: Source) -> Row:
    """Correct on every check, seen in the plan, faster than the parent: as this machine's judge sees it."""
    parent = here.score(pair.situation.source)
    found = here.score(child)
    if not parent.passed or not found.passed:
        return {"reason": (found.reason or parent.reason)[:500], "correct": found.passed}
    gain = here.gain(parent, pair.situation.source, found, child)
    seen = catalogue.witnessed(pair.action.strategy, parent, found)
    return {"correct": True, "witnessed": seen, "gain": gain, "faster": gain[1] > 1.0}


def unanswered(reason: str) -> bool:
    """Whether nobody answered: no fault of the model's, the item is asked again in a later session."""
    return reason.startswith(tuple(f"the model failed ({kind})" for kind in NOBODY))


def _applied(steps: Sequence[Step]) -> bool:
    """Whether any answer could be applied to the source, whatever came of it."""
    return any(not step.detail.startswith(("format", "the model failed")) for step in steps)


# -- repair ----------------------------------------------------------------------------------------------------------


def _repaired(one: Planted, variant: str, model: Counted, notebook: Notebook, here: Here) -> None:
    if not model.left:
        return
    wrong = here.probe(one.source)
    if wrong.passed:
        return  # this machine's judge does not see it: nothing to repair
    told = variant == CATEGORY
    session = Session(
        model,
        lambda source: opening(here, source, wrong, told),
        one.source,
        here.probe,
        Limits(edits=1, repairs=REPAIRS),
        category=told,
    )
    row: Row = {
        "kind": "item", "part": "repair", "id": f"{one.id} {variant}", "fault": one.id, "category": one.category,
        "variant": variant, "judged": here.judge.environment.kind,
    }  # fmt: skip
    try:
        coded = session.work()
        row |= {"repaired": True, "answers": len(coded.calls), "reason": ""}
    except OperatorFailed as failure:
        if unanswered(failure.reason):
            return
        row |= {"repaired": False, "answers": len(failure.calls), "reason": failure.reason[:500]}
    notebook.write(row)


def opening(here: Here, source: Source, wrong: Evaluation, told: bool) -> Opening:
    """The source with its fault, and what the judge said of it, as a repair request of the coder says it."""
    prompts = Prompts()
    environment: Environment = here.judge.environment
    return Opening(
        (
            prompts.system(here.task.card(), environment, "answer", "coder"),
            user([source_part(source, prompts.budgets.source, (), True), Part("Repair it", request(wrong, told))]),
        )
    )


def request(wrong: Evaluation, told: bool) -> str:
    """The judge's reason, with the kind of fault and its advice where it is `told`."""
    reason = without_middle(wrong.reason, 1200)
    fault = fault_of(wrong)
    if not told or fault is None:
        return f"Failed.\n{reason}\n\nMend it; change nothing else."
    return f"Failed ({fault}).\n{reason}\n\n{ADVICE[fault]} Mend it; change nothing else."
