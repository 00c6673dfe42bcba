"""The mix: draws as weighted, learns from credit, sends everything home."""

import dataclasses

import numpy as np
import pytest

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Decision, Operator, Proposal, Source, Step, Strategy
from operators.crossover import CrossoverOperator
from operators.macro.policies import UniformPolicy
from operators.micro.coder import RewriteCoder
from operators.mix import MixOperator
from operators.mtmc import MtmcOperator
from tests.operators.support_search import brief, credit, evaluation, kernel, no_probe, plan, relative, seed_of

PARENT = relative(1, seed_of("softmax"))
ONE = Decision("fixed", (Strategy("hoist", "reordering"),), (1.0,), 0)


class Scripted:
    """Proposes its own name, or fails as told."""

    def __init__(self, name, failure=None):
        self.name, self.failure, self.learnt, self.first = name, failure, [], None

    def propose(self, brief, probe):
        self.first = float(np.random.default_rng(brief.seed).random())
        if self.failure:
            raise self.failure
        return Proposal(Source(self.name), self.name)

    def witnessed(self, proposal, parent, child):
        return self.name == "a"

    def learn(self, credit):
        self.learnt.append(credit)


def shares(mix, attempts=400):
    drawn = [mix.propose(brief(PARENT, attempt), no_probe).operator for attempt in range(attempts)]
    return {name: drawn.count(name) / attempts for name in set(drawn)}


def test_operators_are_drawn_by_weight_and_repeatably():
    mix = MixOperator([Scripted("a"), Scripted("b"), Scripted("c")], {"a": 3.0, "b": 1.0, "c": 0.0})
    assert isinstance(mix, Operator)
    found = shares(mix)
    assert found["a"] == pytest.approx(0.75, abs=0.08) and "c" not in found
    assert shares(mix) == found


def test_an_operator_that_is_refused_is_not_asked_and_what_it_began_waits():
    class Begun(Scripted):
        def holds(self, brief):
            return brief.attempt == 7

    said = {"b": "models do not answer"}
    mix = MixOperator([Scripted("a"), Begun("b")], refusal=lambda name: said.get(name, ""))
    assert shares(mix, 7) == {"a": 1.0}
    with pytest.raises(OperatorFailed, match="models do not answer") as caught:
        mix.propose(brief(PARENT, 7), no_probe)
    assert caught.value.paused and caught.value.operator == "b"
    said["a"] = "nor this"
    with pytest.raises(OperatorFailed, match="a: nor this") as caught:
        mix.propose(brief(PARENT, 8), no_probe)
    assert not caught.value.paused and not caught.value.exhausted
    said.clear()
    assert mix.propose(brief(PARENT, 7), no_probe).operator == "b"


def test_the_operator_does_not_see_the_numbers_that_chose_it():
    a, b = Scripted("a"), Scripted("b")
    mix, seen = MixOperator([a, b]), {"a": [], "b": []}
    for attempt in range(300):
        name = mix.propose(brief(PARENT, attempt), no_probe).operator
        seen[name].append((a if name == "a" else b).first)
    assert abs(np.mean(seen["a"]) - np.mean(seen["b"])) < 0.15


def test_credit_and_witness_go_to_whoever_proposed():
    a, b = Scripted("a"), Scripted("b")
    mix = MixOperator([a, b])
    for operator in ("a", "b", "b", "gone"):
        mix.learn(credit(ONE, 0.1, operator=operator))
    assert (len(a.learnt), len(b.learnt)) == (1, 2)
    verdict = evaluation(plan(kernel()))
    assert mix.witnessed(Proposal(PARENT.source, "a"), verdict, verdict)
    assert not mix.witnessed(Proposal(PARENT.source, "b"), verdict, verdict)
    assert not mix.witnessed(Proposal(PARENT.source, "gone"), verdict, verdict)


def test_a_failure_that_cost_nothing_passes_the_attempt_on():
    mix = MixOperator([Scripted("a", OperatorFailed("nobody to cross with")), Scripted("b")], {"a": 9.0})
    assert shares(mix, 20) == {"b": 1.0}
    mix = MixOperator([Scripted("a", OperatorFailed("no partner")), Scripted("b", OperatorFailed("nothing applies"))])
    with pytest.raises(OperatorFailed, match="no partner") as caught:
        mix.propose(brief(PARENT), no_probe)
    assert "nothing applies" in caught.value.reason


def test_a_failure_that_cost_something_is_reported():
    failure = OperatorFailed("refused", steps=(Step("hoist", "rolled back"),), decisions=(ONE,))
    mix = MixOperator([Scripted("a", failure), Scripted("b")], {"b": 0.0})
    with pytest.raises(OperatorFailed, match="refused") as caught:
        mix.propose(brief(PARENT), no_probe)
    assert caught.value.operator == "a" and caught.value.decisions == (ONE,)


@pytest.mark.parametrize("weights", [{"z": 1.0}, {"a": -1.0}, {"a": 0.0, "b": 0.0}])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        MixOperator([Scripted("a"), Scripted("b")], weights)


def test_a_mix_needs_operators_with_names_of_their_own():
    for operators in ([], [Scripted("a"), Scripted("a")]):
        with pytest.raises(ValueError, match="at least one operator"):
            MixOperator(operators)


def test_the_embedded_default_works_end_to_end():
    coder = RewriteCoder()
    mix = MixOperator([MtmcOperator(UniformPolicy(), coder), CrossoverOperator(coder)], {"crossover": 0.5})
    children = [mix.propose(brief(PARENT, attempt), no_probe) for attempt in range(6)]
    relatives = [
        relative(attempt + 2, child.source, (child.strategy,))
        for attempt, child in enumerate(children)
        if child.strategy
    ]
    others = [
        mix.propose(brief(relatives[0], attempt + 10, relatives[1:]), no_probe).operator for attempt in range(20)
    ]  # fmt: skip
    assert {child.operator for child in children} == {"mtmc"} and set(others) == {"mtmc", "crossover"}
    assert dataclasses.replace(children[0], wall_s=0.0, steps=()) == dataclasses.replace(
        mix.propose(brief(PARENT, 0), no_probe), wall_s=0.0, steps=()
    )
