"""The workbench over the real judge, population and knowledge base: a kernel is read, changed, judged and committed."""

from __future__ import annotations

import json
import shutil

import pytest

from evo_kernel.app.compose import prepared
from evo_kernel.app.workbench import open_workbench, rooms_of
from evo_kernel.budget import Spent
from evo_kernel.config import Config, JudgeConfig
from evo_kernel.errors import OperatorFailed
from evo_kernel.tasks.loading import load
from evo_kernel.types import Proposal, Purpose, Source
from operators.knowledge.base import KnowledgeBase
from operators.micro.coder import RewriteCoder


@pytest.mark.slow
def test_a_kernel_is_judged_and_committed_through_the_workbench(tmp_path):
    task, spent = small_softmax(tmp_path / "softmax"), []
    config = Config(task=str(task.path.parent), device="cpu", judge=JudgeConfig(tune_plans=0))
    with prepared(config, task, tmp_path / "p.db", True) as parts:
        population, judge = parts.population, parts.judge
        (seed,) = population.pending()
        population.tell(seed, judge.evaluate(seed.proposal.source, Purpose.SCORE))
        brief = population.ask()
        rooms = rooms_of(population, judge, KnowledgeBase(), spent.append)
        work = open_workbench(tmp_path / "room", rooms, brief, "avo")

        def said(name, **arguments):
            outcome = work.call(name, json.dumps(arguments))
            assert not outcome.failed, outcome.text
            return outcome.text

        hidden = [case.name for case in task.cases if case.kind == "confirm"]
        shown = [said(name, **given) for name, given in (
            ("list_files", {}), ("read_file", {"path": "task/task.md"}), ("lineage", {}), ("show_version", {"version": 1}),
            ("knowledge", {"query": "softmax row in registers"}), ("profile", {}), ("probe", {}),
        )]  # fmt: skip
        assert "bound by" in shown[5] and "Correct; not timed" in shown[6]
        assert "compiled for case m256-n2048:" in shown[6] and " registers, 0 B spilled" in shown[6], (
            "no call of its own"
        )
        outcome = work.call("profile", {"case": hidden[0]})
        assert outcome.failed and "there is no case" in outcome.text
        found = ""
        for offered in RewriteCoder().offer(brief.parent.source, brief.task)[:10]:
            text = _rewritten(brief.parent.source, offered, brief.task)
            if text is None:
                continue
            work.call("write_file", {"path": "kernel.py", "text": text})
            told = work.call("evaluate", {"idea": offered.name})
            shown.append(told.text)
            if "gate: would pass" in told.text:
                found = work.call("submit", {"idea": offered.name, "strategy": offered.name}).text
                break
        assert found.startswith("Committed."), shown
        assert not any(name in text for name in hidden for text in [*shown, found])
        assert sum(one.evaluations for one in spent) >= 2 and work.submission is not None
        assert isinstance(spent[0], Spent)
        recorded = population.record(brief, Proposal(Source(work.submission.text), "avo"))
        population.tell(recorded, judge.evaluate(recorded.proposal.source, Purpose.SCORE))
        assert population.champion().candidate == recorded.candidate, "the gate's confirmation counts"
        before = judge.evaluate(seed.proposal.source, Purpose.SCORE)
        assert not sum(before.charged.values())


def small_softmax(folder):
    """The built-in task at sizes that are judged in no time."""
    shutil.copytree(load("softmax").path.parent, folder)
    cases = {"check": [{"m": 3, "n": 129}], "search": [{"m": 256, "n": 2048}], "confirm": [{"m": 5, "n": 1067}]}
    with (folder / "task.py").open("a") as file:
        file.write(f"\n\nCASES = {cases!r}\n")
    return load(folder)


def _rewritten(source, strategy, task):
    try:
        return RewriteCoder().implement(source, strategy)
    except OperatorFailed:
        return None
