"""The language-model policy: picks by number, proposes, falls back, learns; and policies mixed."""

import dataclasses

import numpy as np
import pytest

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Source, Strategy, Tried
from operators.llm.base import ModelFailed
from operators.llm_policy import LlmPolicy, answer_schema, offers_text, read_answer, stated
from operators.macro.bandit import BanditPolicy
from operators.macro.catalogue import CATALOGUE, PAYS, STOP, description, proposed
from operators.macro.features import MacroState
from operators.macro.policies import MixedPolicy, Policy, UniformPolicy
from operators.micro.llm_coder import applicable
from operators.prompts.parts import tokens
from tests.operators.answers.source import SOURCE
from tests.operators.support_model import FakeModel, choice, reply
from tests.operators.support_search import TASK, brief, credit, relative

PARENT = relative(1, Source(SOURCE))
OFFERED = (*applicable(PARENT.source, TASK), STOP)
NEW = len(OFFERED) + 1  # the number that stands for a strategy of the model's own
WISH = {"name": "half-and-half", "family": "memory", "description": "Split the row in two.", "region": "kernel a"}


def state(free=False, **more) -> MacroState:
    given = brief(PARENT)
    return MacroState(TASK, PARENT, PARENT.source, given.tried, 0, given, free, **more)


def rng():
    return np.random.default_rng(0)


def test_it_picks_by_number_and_states_its_propensities():
    model = FakeModel(choice(2, 0.6))
    policy = LlmPolicy(model)
    assert isinstance(policy, Policy)
    decision = policy.choose(state(), OFFERED, rng())
    assert decision.policy == "llm" and decision.offered == OFFERED and decision.chosen == 1
    assert decision.probabilities[1] == 0.6 and sum(decision.probabilities) == pytest.approx(1.0)
    assert len(decision.calls) == 1 and model.schemas[0] == answer_schema(len(OFFERED), False)
    assert all(f"\n{n}. {s.name}" in model.asked[0][1].content for n, s in enumerate(OFFERED, start=1))


def test_it_may_stop_where_that_is_offered():
    decision = LlmPolicy(FakeModel(choice(len(OFFERED)))).choose(state(), OFFERED, rng())
    assert decision.offered[decision.chosen] == STOP


@pytest.mark.parametrize(
    "answer",
    [
        "", "I choose 2", "[]", "2", '{"choice": "2"}', '{"choice": true}', '{"choice": 1.5}', "{}", '{"choice": null}',
        choice(0), choice(-1), choice(10_000), choice(NEW, proposal=WISH),
    ],
)  # fmt: skip
def test_what_cannot_be_used_goes_to_the_fallback_with_its_cost(answer):
    decision = LlmPolicy(FakeModel(answer), fallback=BanditPolicy()).choose(state(), OFFERED, rng())
    assert decision.policy == "bandit" and decision.offered == OFFERED
    assert len(decision.calls) == 1 and decision.calls[0].error.startswith("unusable choice")


@pytest.mark.parametrize("kind", ["down", "budget", "invalid", "refused", "too long"])
def test_a_model_that_fails_leaves_the_choice_to_the_fallback(kind):
    spent = (reply("").call,)
    decision = LlmPolicy(FakeModel(ModelFailed("no", kind, spent))).choose(state(), OFFERED, rng())
    assert decision.policy == "uniform" and decision.calls == spent


def test_when_the_run_is_stopped_nobody_else_chooses():
    spent = (reply("").call,)
    with pytest.raises(OperatorFailed, match="the run was stopped") as caught:
        LlmPolicy(FakeModel(ModelFailed("the run was stopped", "stopped", spent))).choose(state(), OFFERED, rng())
    assert caught.value.calls == spent


@pytest.mark.parametrize(
    "wish",
    [
        None, {}, {**WISH, "name": "fuse-consumer"}, {**WISH, "name": "other"}, {**WISH, "name": "Two Words"},
        {**WISH, "name": "x" * 60}, {**WISH, "family": "magic"}, {**WISH, "description": " "}, {**WISH, "region": 3},
    ],
)  # fmt: skip
def test_a_proposal_must_be_one(wish):
    with pytest.raises(ValueError):
        read_answer(choice(NEW, proposal=wish), OFFERED, free=True)


def test_a_proposal_is_offered_again_once_something_came_of_it():
    policy = LlmPolicy(FakeModel(choice(NEW, proposal=WISH), choice(1)))
    own = proposed(**WISH)
    decision = policy.choose(state(free=True), OFFERED, rng())
    assert decision.offered == (*OFFERED, own) and decision.chosen == len(OFFERED)
    policy.learn(credit(dataclasses.replace(decision, calls=()), 0.2, witnessed=False))
    assert own in policy.choose(state(free=True), OFFERED, rng()).offered
    assert own not in policy.choose(state(), OFFERED, rng()).offered, "a coder that is not free cannot do it"
    child = dataclasses.replace(state(free=True), parent=dataclasses.replace(PARENT, strategies=(own,)))
    assert own not in policy.choose(child, OFFERED, rng()).offered, "it is in the source already"
    tried = dataclasses.replace(state(free=True), tried=(Tried(own, None, None),))
    assert own not in policy.choose(tried, OFFERED, rng()).offered
    assert "half-and-half: once, +22.1 %" in policy.messages(state(), OFFERED)[1].content


def test_learning_is_replay_and_reaches_the_fallback():
    decision = UniformPolicy().choose(state(), OFFERED, rng())
    credits = [credit(decision, reward, depth=depth) for reward, depth in ((0.5, 0), (0.1, 1), (float("nan"), 0))]
    texts = []
    for _ in range(2):
        seen = []
        fallback = UniformPolicy()
        fallback.learn = seen.append
        policy = LlmPolicy(FakeModel(""), fallback=fallback)
        for one in credits:
            policy.learn(one)
        assert seen == credits
        texts.append(policy.messages(state(), OFFERED))
    assert texts[0] == texts[1] and ": once, seen" in texts[0][1].content


def test_this_attempt_is_told():
    told = LlmPolicy(FakeModel("")).messages(state(trail=((OFFERED[0], "rolled back: compile: no"),)), OFFERED)
    assert "rolled back: compile: no" in told[1].content


def test_stated_confidences_are_held():
    for confidence in (-3.0, 0.0, 0.5, 1.0, 7.0):
        chances = stated(confidence, 4, 2)
        assert sum(chances) == pytest.approx(1.0) and min(chances) >= 0 and chances[2] == max(chances)
    assert stated(0.1, 1, 0) == (1.0,)
    strange = '{"choice": 1, "confidence": "very"}'
    assert read_answer(strange, OFFERED, False) == (OFFERED[0], 1.0)


def test_offers_are_all_there_however_small_the_budget():
    full, short = offers_text(OFFERED, 10_000, True), offers_text(OFFERED, 1, True)
    assert len(full.splitlines()) == len(short.splitlines()) == len(OFFERED) + 1 and tokens(short) < tokens(full)
    assert all(line.startswith(f"{n}. ") for n, line in enumerate(short.splitlines(), start=1))


def test_a_state_without_a_brief_is_the_fallbacks():
    bare = MacroState(TASK, PARENT, PARENT.source)
    assert LlmPolicy(FakeModel("")).choose(bare, OFFERED, rng()).policy == "uniform"


def test_policies_can_be_mixed():
    mixed = MixedPolicy(LlmPolicy(FakeModel(choice(1))), BanditPolicy())
    draws = np.random.default_rng(1)
    names = [mixed.choose(state(), OFFERED, draws).policy for _ in range(60)]
    assert 16 <= names.count("llm") <= 44 and names.count("llm") + names.count("bandit") == 60


def test_offers_say_once_for_each_name_where_they_pay():
    assert set(PAYS) == set(CATALOGUE) - {"stop"}
    twice = (*OFFERED, dataclasses.replace(OFFERED[0], region="kernel other"))
    text = offers_text(twice, 10_000, False)
    assert text.count(f"Pays where {PAYS[OFFERED[0].name]}") == 1
    room = tokens(offers_text(twice, 10_000, False)) - 1
    assert "Pays where" not in offers_text(twice, room, False) and description(OFFERED[0]) in offers_text(
        twice, room, False
    )
    everything = tuple(Strategy(name, spec.family, "kernel k") for name, spec in CATALOGUE.items())
    assert tokens(offers_text(everything, 2500, True)) < 1400  # of 2,500 that offers may take
