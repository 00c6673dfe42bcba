"""The macro part: a language model picks among measured actions, with a parent's own evidence and with another's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.agents.notebook import NOBODY, Counted, Ear, Notebook
from benchmarks.agents.regret import Situation
from evo_kernel.types import Brief, Relative
from operators.llm.base import Model
from operators.macro.llm_policy import LlmPolicy
from operators.prompts.writer import Prompts

OWN, PLACEBO = "own evidence", "another's evidence"


def ask(found: Sequence[Situation], model: Model, notebook: Notebook, limit: int, width: int) -> None:
    """Both variants of each situation that is chosen, as far as `limit` calls go; what is known is not asked again."""
    counted = Counted(model, notebook, "macro", limit)
    asked = spread(found, limit // 2)
    others = {one.id: other for one, other in zip(found, placebos(found), strict=True)}
    jobs = [(one, variant) for one in asked for variant in (OWN, PLACEBO)]
    jobs = [(one, variant) for one, variant in jobs if f"{one.id} {variant}" not in notebook.items("macro")]
    with ThreadPoolExecutor(width) as pool:
        for done in [pool.submit(_one, one, others[one.id], variant, counted, notebook) for one, variant in jobs]:
            done.result()


def spread(found: Sequence[Situation], count: int, seed: int = 0) -> list[Situation]:
    """So many of them, tasks in turn, in an order that a larger count only adds to."""
    rng = np.random.default_rng(seed)
    by_task: dict[str, list[Situation]] = {}
    for at in rng.permutation(len(found)):
        by_task.setdefault(found[int(at)].task.name, []).append(found[int(at)])
    ranked = [(place, name, one) for name in sorted(by_task) for place, one in enumerate(by_task[name])]
    return [one for _, _, one in sorted(ranked, key=lambda entry: entry[:2])][:count]


def placebos(found: Sequence[Situation]) -> list[Situation]:
    """Whose evidence each is shown instead: of another parent of the task, the one whose time differs most."""
    made = []
    for one in found:
        others = [other for other in found if other.task.name == one.task.name and other.id != one.id]
        made.append(max(others or [one], key=lambda other: abs(_log_us(other) - _log_us(one))))
    return made


def brief_of(one: Situation, evidence: Situation) -> Brief:
    """A ticket for that parent, with the evidence of that situation."""
    assert evidence.parent.evaluation is not None
    parent = dataclasses.replace(one.parent, evaluation=evidence.parent.evaluation)
    environment = evidence.parent.evaluation.environment
    return Brief(one.parent.candidate, one.task, parent, (), (), 0, (0, one.parent.candidate), environment)


def prompts_of(evidence: Situation, **more: object) -> Prompts:
    """Prompts that show the profile of that situation, whatever kernel is asked about."""

    def profile(relative: Relative) -> str:
        del relative
        return evidence.profile

    return Prompts(profile=profile, **more)  # type: ignore[arg-type]


def _one(one: Situation, other: Situation, variant: str, model: Counted, notebook: Notebook) -> None:
    if not model.left:
        return
    evidence = one if variant == OWN else other
    ear = Ear(model)
    policy = LlmPolicy(ear, prompts_of(evidence))
    brief = brief_of(one, evidence)
    state = dataclasses.replace(one.state(brief=brief), parent=brief.parent)
    decision = policy.choose(state, one.offered, np.random.default_rng(brief.seed))
    if ear.failed in NOBODY:
        return  # asked again in a later session
    chosen = one.actions[decision.chosen]
    by_model = decision.policy == LlmPolicy.name
    values = one.values
    regret = one.best - (chosen.value if by_model else float(np.dot(decision.probabilities, values)))
    notebook.write(
        {
            "kind": "item", "part": "macro", "id": f"{one.id} {variant}", "parent": one.id, "variant": variant,
            "evidence": evidence.id, "by_model": by_model, "chosen": chosen.strategy.key,
            "confidence": max(decision.probabilities), "regret": regret, "best": one.best,
        }
    )  # fmt: skip


def _log_us(one: Situation) -> float:
    return one.parent.evaluation.log_us if one.parent.evaluation else 0.0
