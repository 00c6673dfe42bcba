"""Memory over attempts, stalls and cycles, and the directions that the next attempts are given."""

from __future__ import annotations

import json

import pytest

from evo_kernel.errors import OperatorFailed
from operators.avo.attempt import AvoSettings
from operators.avo.memory import (
    AgentEvaluation,
    AgentMemory,
    Record,
    Review,
    Supervisor,
    SupervisorLimits,
    by_rule,
    same_idea,
)
from operators.llm.base import ModelFailed
from operators.llm.models import ScriptedModel
from tests.operators.avo.support import Turns, does, evaluates, no_probe, operator, submits, writes
from tests.operators.workbench.fakes import FakeLineage, brief

LIMITS = SupervisorLimits(attempts=4, hours=2.0, repeats=3, directions=3)


def record(attempt, *tried, committed=False, at=0.0):
    return Record(attempt, 1, "gave up", committed, "split-k" if committed else "", None, tried, at)


def bad(idea, plan=""):
    return AgentEvaluation(idea, "wrong", "calculation", plan)


def memory(*records, store=None):
    found = AgentMemory(store or Turns())
    found.begin(0.0)
    for one in records:
        found.end(one)
    return found


def stuck(found, now=0.0, limits=LIMITS):
    return Supervisor(limits, None, None).stuck(found, now)[0]


def test_ideas_are_known_by_their_words():
    assert same_idea("Split-K by 8") == same_idea("split k, by 4") != same_idea("split m by 4")


def test_a_stall_is_noticed_by_attempts_and_by_hours():
    records = [record(n, bad(f"idea {'abcdef'[n]}"), at=60.0 * n) for n in range(4)]
    assert not stuck(memory(*records[:3]), 200.0)
    assert stuck(memory(*records), 200.0) == "no commit in 4 attempts"
    assert stuck(memory(*records[:2]), 7300.0) == "no commit in 2.0 hours"
    assert not stuck(memory(), 10**6), "an attempt must have ended"
    assert not stuck(memory(*records[:2], record(5, committed=True, at=7000.0), record(6, at=7100.0)), 7300.0)


@pytest.mark.parametrize(
    ("tried", "sign"),
    [
        ([bad("Split-K by 8"), bad("split k by 4"), bad("by 16: split K")], "idea by k split"),
        ([bad("one", "p1"), bad("two", "p1"), bad("three", "p1")], "plan p1"),
        ([AgentEvaluation("as before", "passed", refused="no gain")] * 3, "idea as before"),
    ],
)
def test_a_cycle_is_noticed_by_idea_and_by_plan(tried, sign):
    found = memory(*(record(n, one) for n, one in enumerate(tried)))
    assert sign in stuck(found)
    assert not stuck(memory(*(record(n, one) for n, one in enumerate(tried[:2]))))


def test_a_commit_or_a_review_starts_the_counts_anew():
    records = [record(n, bad("same thing")) for n in range(4)]
    assert stuck(memory(*records))
    assert not stuck(memory(*records, record(9, committed=True)))
    found = memory(*records)
    found.reviewed(Review(9, "stuck", ("go left",), ("idea same thing",), 10.0))
    assert not stuck(found) and found.review().directions == ("go left",)
    found.end(record(10, committed=True))
    assert found.review() is None


def test_memory_survives_a_restart_and_stays_bounded():
    store = Turns(10_000)
    found = memory(store=store)
    for n in range(1, 1200):
        found.end(record(n, *[bad(f"idea {'x' * (n % 40)} {k}", f"p{n}-{k}") for k in "abcdefgh"]))
        if n % 100 == 0:
            found.reviewed(Review(n, "stuck", ("go left", "go right"), (), float(n)))
    again = AgentMemory(store)
    assert again.text() == found.text() and len(found.text().encode()) <= 9000
    assert again.review() == found.review() or again.review().directions == found.review().directions
    assert len(found.records()) == 200
    assert again.barren()[0] == found.barren()[0]


def test_an_attempt_that_ended_twice_counts_once():
    found = memory(record(1, bad("a thing")), record(1, bad("a thing")))
    assert len(found.records()) == 1 and found.barren()[0] == 1


def test_what_failed_before_is_said_again():
    found = memory(record(3, bad("Split-K by 8", "p1")))
    assert "same kernel failed in attempt 3" in found.warning("something else", "p1")
    assert "same idea failed in attempt 3" in found.warning("split k by 2", "p2")
    assert not found.warning("something else", "p2")


def reviewed(found, model):
    lineage = FakeLineage(brief().parent.source)
    return Supervisor(LIMITS, model, lineage).look(found, brief(20), 100.0)


def test_the_model_reviews_the_trajectory():
    asked = []

    def answer(one):
        asked.append(one)
        return json.dumps(
            {"diagnosis": "too timid", "directions": ["use tensor cores", "drop the masks", "persistent"]}
        )

    found = memory(*(record(n, bad(f"idea {'abcd'[n]}")) for n in range(4)))
    said = reviewed(found, ScriptedModel(answer))
    review = found.review()
    assert review is not None and review.directions == ("use tensor cores", "drop the masks", "persistent")
    assert len(said) == 1
    text = asked[0].last
    assert "no commit in 4 attempts" in text and "idea d [wrong calculation]" in text and "C1" in text
    assert not reviewed(found, ScriptedModel(answer)) and found.review() is review, (
        "not again before more attempts have failed"
    )


@pytest.mark.parametrize("answer", ["no JSON at all", '{"directions": 3}', ModelFailed("down", "down")])
def test_the_rule_stands_in_for_the_model(answer):
    def script(asked):
        if isinstance(answer, ModelFailed):
            raise answer
        return answer

    found = memory(*(record(n, bad(f"split-k {'abcd'[n]}")) for n in range(4)))
    reviewed(found, ScriptedModel(script))
    review = found.review()
    assert review is not None and len(set(review.directions)) == 3


def test_directions_by_rule_differ_and_avoid_what_was_tried():
    records = [record(n, bad("split-k")) for n in range(5)]
    first, second = by_rule(records, brief(), 4), by_rule([*records, record(9)], brief(), 4)
    assert len(set(first)) == 4 and first != second
    assert not any("work on tiling" in one for one in first[:3])


def test_a_run_that_stalls_is_redirected(tmp_path):
    """Attempts that all try the same are reviewed; the next one's prompt holds the directions, a commit ends them."""
    prompts, reviews = [], []

    def answer(asked):
        if asked.schema is not None:
            reviews.append(asked.last)
            return json.dumps({"diagnosis": "d", "directions": ["use tensor cores", "make it persistent"]})
        prompts.append("\n".join(message.content for message in asked.messages))
        if len(prompts) > 12:
            return does(writes(50.0), submits())
        if len(asked.messages) > 4:
            return does(("give_up", {"reason": "it is no use"}))
        return does(writes(120.0 + len(prompts)), evaluates("the same old idea"))

    store = Turns()
    settings = AvoSettings(supervision=SupervisorLimits(attempts=50, repeats=3, directions=2))
    agent = operator(tmp_path, answer, store, settings)
    for attempt in range(1, 7):
        with pytest.raises(OperatorFailed):
            agent.propose(brief(attempt), no_probe)
    assert len(reviews) == 1 and "idea idea old same the" in reviews[0]
    assert "New directions" not in prompts[4] and "1. use tensor cores" in prompts[6]
    assert "1. make it persistent" in prompts[8], "the next attempt begins with another one"
    assert "Note: The same idea failed in attempt 1" in prompts[3]
    assert "attempt 1 from C1: gave up" in prompts[2]
    again = operator(tmp_path, answer, store, settings)  # after a restart
    assert again.propose(brief(7), no_probe).strategy.name == "split-k"
    assert "1. use tensor cores" in prompts[-1]
    with pytest.raises(OperatorFailed):
        operator(tmp_path, lambda asked: prompts.append(asked.last) or "done", store, settings).propose(
            brief(8), no_probe
        )
    assert not any("New directions" in prompt for prompt in prompts[-3:])
    assert "committed split-k, gain 2.000x" in "".join(prompts[-3:])
