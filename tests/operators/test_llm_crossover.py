"""Crossover by a language model: which two, what it reads, what it costs."""

import dataclasses

import pytest

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Operator, Source, Status, Strategy
from operators.crossover import LlmCrossover
from tests.operators.answers.source import BOTH, CALL, FUSED, SCALE, SOURCE
from tests.operators.support_model import FakeModel, Judged, block
from tests.operators.support_search import brief, evaluation, kept_strategies, kernel, no_probe, plan, relative

HOIST, FUSE = (
    Strategy("hoist", "reordering"),
    Strategy("fuse-consumer", "fusion", "kernel scale_kernel -> shift_kernel"),
)
PARENT = relative(1, Source(SOURCE), [HOIST])
OTHER = relative(2, Source(FUSED.replace("BLOCK = 256", "BLOCK = 64")), [HOIST, FUSE])
MERGE = block(SCALE, BOTH) + block(CALL, "")


def test_two_become_one():
    model, probe = FakeModel("no", MERGE), Judged()
    operator = LlmCrossover(model)
    proposal = operator.propose(brief(PARENT, inspirations=(OTHER,)), probe)
    assert isinstance(operator, Operator) and proposal.source.text == FUSED
    assert proposal.parents == (("parent", 1), ("inspiration", 2)) and proposal.strategy == FUSE
    assert len(proposal.calls) == 2 and proposal.probes == 1 and kept_strategies(proposal) == (FUSE,)
    user = model.asked[0][1].content
    assert "BLOCK = 64" in user and user.count("## Source of") == 2 and "fuse-consumer at" in user
    fewer = evaluation(plan(kernel()), "q")
    assert operator.witnessed(proposal, evaluation(plan(kernel(), kernel())), fewer)


def test_the_best_that_passed_and_has_something_new_is_taken():
    worse = dataclasses.replace(OTHER, candidate=3, evaluation=evaluation(plan(kernel()), us=19.9))
    failed = relative(4, Source("x"), [FUSE], judged=False)
    proposal = LlmCrossover(FakeModel(MERGE)).propose(brief(PARENT, inspirations=(worse, failed, OTHER)), Judged())
    assert proposal.parents[1] == ("inspiration", 2)


@pytest.mark.parametrize(
    "others", [(), (PARENT,), (relative(4, Source("x"), [FUSE], judged=False),), (relative(5, Source("y"), [HOIST]),)]
)
def test_without_a_partner_it_fails_at_no_cost(others):
    with pytest.raises(OperatorFailed, match="no inspiration that passed") as caught:
        LlmCrossover(FakeModel("never")).propose(brief(PARENT, inspirations=others), no_probe)
    assert caught.value.exhausted and not caught.value.calls and not caught.value.decisions


def test_a_copy_of_either_is_no_child_and_failures_carry_their_cost():
    copy = f"```python\n{OTHER.source.text}```"
    with pytest.raises(OperatorFailed, match="candidate 2 again") as caught:
        LlmCrossover(FakeModel(copy)).propose(brief(PARENT, inspirations=(OTHER,)), no_probe)
    assert len(caught.value.calls) == 4 and caught.value.operator == "llm-crossover" and caught.value.decisions
    wrong = Judged(lambda text: (Status.WRONG, "off"))
    with pytest.raises(OperatorFailed, match="calculation: off"):
        LlmCrossover(FakeModel(MERGE)).propose(brief(PARENT, inspirations=(OTHER,)), wrong)
