"""Crossover: two lineages of real rewrites, and what one learns from the other."""

import ast
import dataclasses

import pytest

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Operator, Source, Strategy
from operators.crossover import CrossoverOperator, best_match, brought, lacking
from operators.micro.coder import RewriteCoder
from tests.operators.support_search import (
    TASK,
    brief,
    evaluation,
    kept_strategies,
    kernel,
    no_probe,
    plan,
    relative,
    seed_of,
)

CODER = RewriteCoder()
OPERATOR = CrossoverOperator(CODER)


def descend(candidate, *names, judged=True):
    """A lineage from the softmax seed by these strategies."""
    source, path = seed_of("softmax"), []
    for name in names:
        strategy = next(s for s in CODER.offer(source, TASK) if s.name == name)
        source = Source(CODER.implement(source, strategy))
        path.append(strategy)
    return relative(candidate, source, path, judged)


LEFT, RIGHT = descend(2, "cache-hints"), descend(3, "online-row", "drop-masks")


def test_strategies_of_another_lineage_are_replayed_on_this_parent():
    assert isinstance(OPERATOR, Operator)
    proposals = [OPERATOR.propose(brief(LEFT, n, (RIGHT,)), no_probe) for n in range(12)]
    kept = {tuple(strategy.name for strategy in kept_strategies(proposal)) for proposal in proposals}
    assert ("online-row", "drop-masks") in kept and kept <= {
        ("online-row", "drop-masks"),
        ("online-row",),
        ("drop-masks",),
    }
    for proposal in proposals:
        ast.parse(proposal.source.text)
        assert proposal.parents == (("parent", 2), ("inspiration", 3)) and proposal.operator == "crossover"
        assert proposal.strategy == kept_strategies(proposal)[0]
        assert all(sum(decision.probabilities) == 1.0 for decision in proposal.decisions)
        assert "cache_modifier" in proposal.source.text or "eviction_policy" in proposal.source.text  # LEFT's own stays


def test_the_same_attempt_makes_the_same_child():
    first, second = (OPERATOR.propose(brief(LEFT, 4, (RIGHT,)), no_probe) for _ in range(2))
    assert first.source == second.source and first.decisions == second.decisions


@pytest.mark.parametrize(
    "inspirations",
    [(), (LEFT,), (descend(5),), (descend(4, "online-row", judged=False),)],
    ids=["none", "itself", "the root", "a failure"],
)
def test_nothing_to_learn_fails_at_no_cost(inspirations):
    with pytest.raises(OperatorFailed, match="no strategy of another lineage") as caught:
        OPERATOR.propose(brief(LEFT, 1, inspirations), no_probe)
    assert caught.value.operator == "crossover" and not caught.value.steps and not caught.value.decisions


def test_a_single_strategy_that_was_tried_is_not_tried_again():
    other = descend(3, "drop-masks")
    tried = [s for s in CODER.offer(LEFT.source, TASK) if s.name == "drop-masks"]
    OPERATOR.propose(brief(LEFT, 1, (other,)), no_probe)
    with pytest.raises(OperatorFailed):
        OPERATOR.propose(brief(LEFT, 1, (other,), tried), no_probe)


def test_lacking_counts_repeats_and_ignores_regions():
    a, b = Strategy("hoist", "reordering", "kernel a"), Strategy("exp2", "algorithm", "kernel a")
    moved = dataclasses.replace(a, region="kernel b")
    assert lacking((a, b, moved), (moved,)) == [b, moved]
    assert lacking((a,), (a, b)) == []


def test_a_worse_sibling_by_the_same_strategy_has_nothing_to_give():
    wide, narrow = (Strategy("row-tiles", "tiling", "kernel a", (("rows", rows),)) for rows in (8, 2))
    other = Strategy("exp2", "algorithm", "kernel a")
    parent = relative(2, Source("a"), [wide])
    sibling = relative(3, Source("b"), [narrow])
    slower = dataclasses.replace(sibling, evaluation=evaluation(plan(kernel()), us=30.0))
    faster = dataclasses.replace(sibling, evaluation=evaluation(plan(kernel()), us=9.0))
    assert lacking(slower.strategies, parent.strategies) == [narrow]
    assert brought(slower, parent) == [] and brought(sibling, parent) == [] and brought(faster, parent) == [narrow]
    with_more = dataclasses.replace(slower, strategies=(narrow, other))
    assert brought(with_more, parent) == [other]  # what the parent has in no form may still help


def test_the_best_region_wins_and_parameters_come_first():
    offered = (
        Strategy("hoist", "reordering", "kernel softmax_kernel, loop 1"),
        Strategy("hoist", "reordering", "kernel softmax_kernel, loop 3"),
        Strategy("hoist", "reordering", "kernel other", (("form", "tile"),)),
        Strategy("exp2", "algorithm", "kernel softmax_kernel, loop 3"),
    )
    assert best_match(offered[1], offered) == 1
    assert best_match(Strategy("hoist", "reordering", "kernel gone", (("form", "tile"),)), offered) == 2
    assert best_match(Strategy("split-k", "tiling"), offered) is None
