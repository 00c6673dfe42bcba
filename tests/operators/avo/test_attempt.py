"""The agent's loop: commits, limits, wrong calls, models that fail, and going on after any turn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Call, Source
from operators.avo.attempt import AttemptLimits, AvoSettings
from operators.avo.conversation import ContextLimits
from operators.llm.base import ModelFailed, size
from operators.llm.models import ScriptedModel
from operators.workbench.judge_tools import Allowed
from tests.operators.avo.forgetful import Forgetful
from tests.operators.avo.support import (
    Turns,
    does,
    evaluates,
    no_probe,
    operator,
    rooms,
    script,
    submits,
    writes,
)
from tests.operators.workbench.fakes import FakeBench, brief, kernel

WAY = [
    does(("list_files", {}), ("read_file", {"path": "kernel.py"}), say="First I look."),
    does(("knowledge", {"query": "wgmma"}), ("lineage", {})),
    does(writes(120.0), evaluates("more stages")),
    does(("note", {"text": "More stages are slower.", "evidence": [{"evaluation": "E7.1", "samples": 45}]})),
    "Let me think about that.",
    does(("evalute", {}), ("evaluate", "{nonsense")),
    does(writes(80.0), ("probe", {}), evaluates("fewer loads")),
    does(submits()),
]


def settings(**limits) -> AvoSettings:
    return AvoSettings(limits=AttemptLimits(**limits))


def failure(agent, ticket=None) -> OperatorFailed:
    with pytest.raises(OperatorFailed) as caught:
        agent.propose(ticket or brief(), no_probe)
    return caught.value


# ---- the loop --------------------------------------------------------------------------------------------------------


def test_an_attempt_ends_at_its_commit(tmp_path):
    store, bench = Turns(), FakeBench()
    agent = operator(tmp_path, WAY, store, given=rooms(bench))
    proposal = agent.propose(brief(), no_probe)
    assert proposal.source == Source(kernel(80.0)) and proposal.operator == "avo"
    assert (proposal.strategy.name, proposal.strategy.family) == ("split-k", "tiling")
    assert [(step.action, step.outcome) for step in proposal.steps] == [
        ("more stages", "rolled back"), ("try split-k", "kept"),
    ]  # fmt: skip
    assert len(proposal.calls) == len(WAY) and not any(call.messages for call in proposal.calls)
    assert store.charged == {"score": 3, "probe": 1, "confirm": 2}
    assert [purpose for purpose, _ in bench.asked] == ["score", "probe", "score", "gate"]
    assert not list(tmp_path.iterdir()), "the workspace is removed"


def test_without_a_store_the_calls_come_home_whole(tmp_path):
    proposal = operator(tmp_path, WAY, Forgetful()).propose(brief(), no_probe)
    assert all(call.messages for call in proposal.calls)


def test_the_opening_tells_task_version_lineage_and_budget(tmp_path):
    seen = []

    def answer(asked):
        seen.append(asked)
        return does(("give_up", {"reason": "enough"}))

    failure(operator(tmp_path, answer))
    text = "\n".join(message.content for message in seen[0].messages)
    for part in ("scripted: see the reference", "def reference(x)", "you start: version C1", "best first", "C2 from C1",
                 "kernel.py, as it stands", "time_us = 100.0", "## Triton notes", "sm_90", "more than 5% slower",
                 "120 answers; left: 40 evaluations"):  # fmt: skip
        assert part in text, part
    assert text.count("C2 from C1") == 1  # once, however it is sorted
    assert all(message.stable for message in seen[0].messages)
    assert {tool.name for tool in seen[0].tools} >= {"evaluate", "submit", "give_up"}


def test_wrong_calls_and_talk_are_answered(tmp_path):
    seen = []
    answers = script(*WAY[4:6])

    def answer(asked):
        seen.append(asked.messages)
        return answers(asked)

    failure(operator(tmp_path, answer))
    assert "You called no tool" in seen[1][-1].content
    assert "did you mean evaluate" in seen[2][-2].content and "are no JSON" in seen[2][-1].content


@pytest.mark.parametrize(
    ("limits", "answers", "why"),
    [
        ({"turns": 3}, [does(("lineage", {}))] * 9, "the limit of 3 answers"),
        ({"idle": 2}, ["hm", "well"], "2 answers in a row called no tool"),
        ({}, [does(("give_up", {"reason": "no idea left"}))], "gave up: no idea left"),
    ],
)
def test_attempts_end_at_limits(tmp_path, limits, answers, why):
    found = failure(operator(tmp_path, answers, settings=settings(**limits)))
    assert found.reason == f"no commit: {why}" and found.operator == "avo" and not found.paused


def test_seconds_end_an_attempt(tmp_path):
    class Slow(ScriptedModel):
        def answer(self, request):
            reply = super().answer(request)
            return replace(reply, call=replace(reply.call, wall_s=40.0))

    slow = Slow(script(*[does(("lineage", {}))] * 9))
    assert "limit of 100 seconds" in failure(operator(tmp_path, slow, settings=settings(seconds=100.0))).reason


def test_too_many_calls_in_an_answer_are_told(tmp_path):
    seen = []

    def answer(asked):
        seen.append(asked.messages)
        return does(*[("lineage", {})] * 70) if len(seen) == 1 else does(("give_up", {"reason": "enough"}))

    failure(operator(tmp_path, answer))
    results = [message for message in seen[1] if message.role == "tool"]
    assert len(results) == 64 and sum("one answer may make 12 calls" in one.content for one in results) == 52


def test_the_same_kernel_under_another_name_is_noticed(tmp_path):
    seen = []
    answers = script(does(writes(120.0), evaluates("one")), does(writes(120.0, "# so\n"), evaluates("two")))

    def answer(asked):
        seen.append(asked.messages)
        return answers(asked)

    failure(operator(tmp_path, answer))
    assert "by its launch plans this is the same kernel as E7.1 (one)" in seen[2][-1].content


# ---- models that fail ------------------------------------------------------------------------------------------------


def failing(*kinds, then=None):
    left = list(kinds)
    answers = script(*(then if then is not None else WAY))

    def answer(asked):
        if left:
            raise ModelFailed("scripted", left.pop(0), (Call("m", 5, 0, 0, 0.25),))
        return answers(asked)

    return answer


def test_a_model_that_is_down_is_waited_for(tmp_path):
    waited = []
    agent = operator(tmp_path, failing("down", "down"), sleep=waited.append)
    proposal = agent.propose(brief(), no_probe)
    assert sum(waited) == 60.0 and len(proposal.calls) == len(WAY) + 2


def test_a_model_that_stays_down_sets_the_attempt_aside(tmp_path):
    down = failing(*["down"] * 99)
    first = iter(WAY[:2])
    store = Turns()
    agent = operator(tmp_path, lambda asked: next(first, None) or down(asked), store, sleep=lambda seconds: None)
    found = failure(agent)
    assert found.paused and found.reason == "set aside: scripted"
    assert agent.holds(brief()) and not store.memories(9)
    again = operator(tmp_path, WAY[2:], store)
    assert again.propose(brief(), no_probe).source.text == kernel(80.0)


def test_an_attempt_that_has_not_begun_is_left_to_others(tmp_path):
    found = failure(operator(tmp_path, failing(*["down"] * 99), sleep=lambda seconds: None))
    assert not found.paused and found.reason == "scripted"


@pytest.mark.parametrize("kind", ["refused", "invalid"])
def test_a_model_that_refuses_ends_the_attempt(tmp_path, kind):
    found = failure(operator(tmp_path, failing(kind)))
    assert "does not answer" in found.reason and found.calls


def test_a_prompt_too_long_for_the_model_is_summed_up(tmp_path):
    store = Turns()
    calls = iter([*WAY[:4], None, *WAY[4:]])

    def answer(asked):
        found = next(calls)
        if found is None:
            raise ModelFailed("too long", "too long")
        return found

    operator(tmp_path, answer, store).propose(brief(), no_probe)
    assert [kind for kind, _ in store.kept[7]].count("summary") == 1


def test_an_ending_run_sets_attempts_aside(tmp_path):
    answers, store = iter(WAY), Turns()
    left = iter([False] * 9 + [True] * 99)
    found = failure(operator(tmp_path, lambda asked: next(answers), store, stopping=lambda: next(left)))
    assert found.paused and store.kept[7]


# ---- going on --------------------------------------------------------------------------------------------------------


class Cut(BaseException):
    """The process is gone."""


class Cutting(Turns):
    """The process dies right after a turn was stored, or right before it would have been."""

    def __init__(self, at: int, before: bool) -> None:
        super().__init__()
        self.left, self.before = at, before

    def append(self, *turn, **rest) -> None:
        self.left -= 1
        if self.left < 0 and self.before:
            raise Cut
        super().append(*turn, **rest)
        if self.left < 0:
            raise Cut


def told(store: Turns) -> list[tuple[str, str]]:
    """All turns, times left out."""
    found = []
    for kind, text in store.kept[7]:
        data = json.loads(text)
        for name in ("wall_s", "charged", "gpu_s"):  # an evaluation whose verdict died with its process is made again
            data.get("outcome", {}).pop(name, None)
        found.append((kind, json.dumps(data, sort_keys=True)))
    return found


def by_place(asked):
    """Answers by what is in the prompt, as a model does: how many answers stand there."""
    return WAY[sum(message.role == "assistant" for message in asked.messages)]


WHOLE = 22
"""Turns of the way, counted by the test."""


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("at", range(WHOLE))
def test_an_attempt_goes_on_from_every_turn(tmp_path, at, before):
    whole = Turns()
    wanted = operator(tmp_path, by_place, whole).propose(brief(), no_probe)
    assert len(whole.kept[7]) == WHOLE
    store = Cutting(at, before)
    with pytest.raises(Cut):
        operator(tmp_path, by_place, store).propose(brief(), no_probe)
    stored = len(store.kept.get(7, ()))
    assert stored == at + (not before)
    store.left = 10**9
    asked = []

    def answer(one):
        asked.append(one.messages)
        return by_place(one)

    agent = operator(tmp_path, answer, store)
    assert agent.holds(brief()) == (stored > 0)
    found = agent.propose(brief(), no_probe)
    assert found.source == wanted.source and found.strategy == wanted.strategy
    assert [step.action for step in found.steps] == [step.action for step in wanted.steps]
    assert told(store) == told(whole), "nothing is asked or done twice that was stored"
    assert all(store.charged[purpose] >= count for purpose, count in whole.charged.items())
    assert store.calls == whole.calls


def test_limits_count_what_earlier_sessions_spent(tmp_path):
    store = Cutting(6, False)
    with pytest.raises(Cut):
        operator(tmp_path, by_place, store, settings(turns=4)).propose(brief(), no_probe)
    store.left = 10**9
    found = failure(operator(tmp_path, by_place, store, settings(turns=4)))
    assert found.reason == "no commit: the limit of 4 answers"
    assert sum(kind == "answer" for kind, _ in store.kept[7]) == 4


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_the_prompt_stays_bounded_over_hundreds_of_turns(tmp_path):
    limits = ContextLimits(bytes=40_000, keep_turns=6, summary_bytes=4000)
    turns = 300
    chosen = AvoSettings(limits=AttemptLimits(turns=turns, seconds=None), context=limits, allowed=Allowed(5))
    largest, answers = 0, 0

    def answer(asked):
        nonlocal largest, answers
        largest = max(largest, size(asked.messages))
        answers += 1
        text = "x" * (answers * 7919 % 30_000)
        return does(("write_file", {"path": f"f{answers % 5}.txt", "text": text}),
                    ("read_file", {"path": f"f{answers % 5}.txt"}), say="y" * (answers * 31 % 9000))  # fmt: skip

    store = Turns()
    found = failure(operator(tmp_path, answer, store, chosen))
    assert f"limit of {turns} answers" in found.reason
    assert largest <= 40_000
    assert sum(kind == "summary" for kind, _ in store.kept[7]) > 20


def test_notes_and_numbers_survive_compaction(tmp_path):
    limits = ContextLimits(bytes=40_000, keep_turns=2, summary_bytes=8000)
    chosen = AvoSettings(context=limits)
    filler = does(("write_file", {"path": "big.txt", "text": "z" * 9000}), ("read_file", {"path": "big.txt"}))
    prompts = []
    answers = script(*WAY[:4], *[filler] * 8)

    def answer(asked):
        prompts.append("\n".join(message.content for message in asked.messages))
        return answers(asked)

    failure(operator(tmp_path, answer, settings=chosen))
    assert "summed up here" in prompts[-1]
    assert "More stages are slower." in prompts[-1] and "E7.1: Correct" in prompts[-1]


def test_a_huge_opening_is_cut_to_fit(tmp_path):
    ticket = brief()
    ticket = replace(ticket, task=replace(ticket.task, reference="# " + "r" * 300_000))
    seen = []

    def answer(asked):
        seen.append(size(asked.messages))
        return does(("give_up", {"reason": "enough"}))

    failure(operator(tmp_path, answer), ticket)
    assert seen[0] <= 240_000 * 0.4
