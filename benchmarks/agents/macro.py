"""The macro part: a language model picks among judged actions, with a parent's own evidence and with another's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.agents.notebook import NOBODY, Counted, Notebook
from benchmarks.agents.situations import Situation
from evo_kernel.types import Brief
from operators.llm_policy import LlmPolicy

OWN, PLACEBO = "own evidence", "another's evidence"


def ask(found: Sequence[Situation], model: Counted, notebook: Notebook, count: int, width: int) -> None:
    """Both variants of the first `count` situations; what is known is not asked again."""
    others, known = placebos(found), notebook.items("macro")
    jobs = [(one, variant) for one in found[:count] for variant in (OWN, PLACEBO)]
    jobs = [(one, variant) for one, variant in jobs if f"{one.id} {variant}" not in known]
    with ThreadPoolExecutor(width) as pool:
        for done in [pool.submit(_one, one, others[one.id], variant, model, notebook) for one, variant in jobs]:
            done.result()


def placebos(found: Sequence[Situation]) -> dict[str, Situation]:
    """Whose evidence each is shown instead: of another parent of the task, the one whose time differs most."""
    made = {}
    for one in found:
        others = [other for other in found if other.task.name == one.task.name and other.id != one.id]
        made[one.id] = max(others or [one], key=lambda other: abs(other.log_us - one.log_us))
    return made


def brief_of(one: Situation, evidence: Situation) -> Brief:
    """A brief about that parent, with the evidence of that situation."""
    assert evidence.parent.evaluation is not None
    parent = dataclasses.replace(one.parent, evaluation=evidence.parent.evaluation)
    return Brief(0, one.task, parent, (), (), 0, (0, 0), evidence.parent.evaluation.environment)


def _one(one: Situation, other: Situation, variant: str, model: Counted, notebook: Notebook) -> None:
    if not model.left:
        return
    evidence = one if variant == OWN else other
    brief = brief_of(one, evidence)
    state = dataclasses.replace(one.state(brief=brief), parent=brief.parent)
    decision = LlmPolicy(model).choose(state, one.offered, np.random.default_rng(brief.seed))
    if model.failed in NOBODY:
        return  # asked again in a later session
    chosen = one.actions[decision.chosen]
    by_model = decision.policy == LlmPolicy.name
    regret = one.best - (chosen.value if by_model else float(np.dot(decision.probabilities, one.values)))
    notebook.write(
        {
            "kind": "item", "part": "macro", "id": f"{one.id} {variant}", "parent": one.id, "variant": variant,
            "by_model": by_model, "chosen": chosen.strategy.key, "regret": regret,
        }
    )  # fmt: skip
