"""mtmc and its coder on the built-in seeds with the real rewrites."""

import ast
import dataclasses
import threading

import numpy as np
import pytest
import torch

from evo_kernel.errors import OperatorFailed
from evo_kernel.tasks.lowering.lower import lower_function
from evo_kernel.types import Decision, Operator, Source, Strategy
from operators.macro.bandit import BanditPolicy
from operators.macro.catalogue import STOP
from operators.macro.policies import UniformPolicy
from operators.micro.coder import Coder, RewriteCoder, StepWalk
from operators.micro.llm_coder import LlmCoder
from operators.micro.rewrites import RewriteFailed
from operators.mtmc import TRIES, MtmcOperator
from tests.operators.support_model import FakeModel
from tests.operators.support_search import (
    TASK,
    brief,
    credit,
    evaluation,
    kept_strategies,
    kernel,
    no_probe,
    plan,
    relative,
    seed_of,
)

PARENT = relative(1, seed_of("softmax"))
CODER = RewriteCoder()
OFFERED = CODER.offer(PARENT.source, TASK)


class Unwilling(RewriteCoder):
    """Refuses the strategies named."""

    def __init__(self, *names):
        super().__init__()
        self.names = names

    def implement(self, source, strategy):
        if strategy.name in self.names or not self.names:
            raise OperatorFailed(f"{strategy.name} is refused")
        return super().implement(source, strategy)


def untimed(proposal):
    steps = tuple(dataclasses.replace(step, wall_s=0.0) for step in proposal.steps)
    return dataclasses.replace(proposal, steps=steps, wall_s=0.0)


def test_a_proposal_is_one_step_by_default_and_says_what_was_done():
    operator = MtmcOperator(UniformPolicy(), CODER)
    assert isinstance(operator, Operator) and isinstance(CODER, Coder)
    proposal = operator.propose(brief(PARENT), no_probe)
    ast.parse(proposal.source.text)
    assert proposal.source != PARENT.source and proposal.operator == "mtmc"
    (decision,), (step,) = proposal.decisions, proposal.steps
    assert decision.offered == OFFERED and decision.offered[decision.chosen] == proposal.strategy
    assert step.outcome == "kept" and step.action == proposal.strategy.key
    assert proposal.probes == 0 and kept_strategies(proposal) == (proposal.strategy,)


@pytest.mark.parametrize("make", [UniformPolicy, BanditPolicy])
def test_the_same_attempt_makes_the_same_proposal_again(make):
    first, second = (
        [
            untimed(MtmcOperator(make(), RewriteCoder(), max_steps=3).propose(brief(PARENT, n), no_probe))
            for n in range(6)
        ]
        for _ in range(2)
    )
    assert first == second
    assert len({proposal.source for proposal in first}) > 1


def test_what_was_tried_on_the_parent_is_not_tried_again():
    operator = MtmcOperator(UniformPolicy(), CODER)
    last = OFFERED[-1]
    for attempt in range(5):
        assert operator.propose(brief(PARENT, attempt, tried=OFFERED[:-1]), no_probe).strategy == last
    with pytest.raises(OperatorFailed, match="everything offered was tried"):
        operator.propose(brief(PARENT, tried=OFFERED), no_probe)


def test_sources_that_offer_nothing_fail_with_a_reason():
    for text in ("def run(x):\n    return x\n", "def run(x:\n", "x = 1\n"):
        with pytest.raises(OperatorFailed, match="no strategy applies"):
            MtmcOperator(UniformPolicy(), CODER).propose(brief(relative(1, Source(text))), no_probe)
    other = relative(1, Source(PARENT.source.text, "cuda"))
    with pytest.raises(OperatorFailed, match="no strategy applies"):
        MtmcOperator(UniformPolicy(), CODER).propose(brief(other), no_probe)


def test_a_kernel_that_no_timed_case_launches_is_not_worked_on():
    text = (
        "import torch\nimport triton\nimport triton.language as tl\n\n\n"
        + "".join(
            f"@triton.jit\ndef {name}(x_ptr, y_ptr, n, B: tl.constexpr):\n    at = tl.program_id(0) * B + tl.arange(0, B)\n"
            "    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)\n\n\n"
            for name in ("short_kernel", "long_kernel")
        )
        + "def run(x):\n    y = torch.empty_like(x)\n    n = x.numel()\n    if n < 65536:\n"
        "        short_kernel[(1,)](x, y, n, B=65536)\n    else:\n"
        "        long_kernel[(triton.cdiv(n, 1024),)](x, y, n, B=1024)\n    return y\n"
    )
    parent = relative(1, Source(text))

    def regions(ran):
        judged = dataclasses.replace(parent, evaluation=ran and evaluation(plan(kernel(name=ran))))
        walk = StepWalk(brief(judged), LlmCoder(FakeModel("")), no_probe)
        return {strategy.region for strategy in walk.offers()}

    both = {"kernel short_kernel", "kernel long_kernel", "kernel short_kernel -> long_kernel"}
    assert regions("short_kernel") == {"kernel short_kernel"}
    assert regions(None) == both, "nothing was timed"
    assert regions("another") == both, "the plan's name is not the source's"


def test_a_strategy_that_cannot_be_carried_out_is_rolled_back_and_another_chosen():
    names = {strategy.name for strategy in OFFERED} - {"cache-hints"}
    seen_rollback = False
    for attempt in range(12):
        operator = MtmcOperator(UniformPolicy(), Unwilling(*names))
        try:
            proposal = operator.propose(brief(PARENT, attempt), no_probe)
        except OperatorFailed as failure:
            assert len(failure.steps) == len(failure.decisions) == TRIES
            continue
        assert proposal.strategy.name == "cache-hints" and len(proposal.steps) == len(proposal.decisions)
        assert kept_strategies(proposal) == (proposal.strategy,)
        refused = [step for step in proposal.steps if step.outcome == "rolled back"]
        assert all("is refused" in step.detail for step in refused)
        assert len({step.action for step in proposal.steps}) == len(proposal.steps)  # none twice
        seen_rollback |= bool(refused)
    assert seen_rollback


def test_a_failure_carries_what_it_cost():
    with pytest.raises(OperatorFailed) as caught:
        MtmcOperator(UniformPolicy(), Unwilling()).propose(brief(PARENT), no_probe)
    failure = caught.value
    assert failure.operator == "mtmc" and len(failure.decisions) == len(failure.steps) == TRIES
    assert {step.outcome for step in failure.steps} == {"rolled back"}


def test_several_steps_build_on_each_other_and_stop_may_be_chosen():
    operator = MtmcOperator(UniformPolicy(), CODER, max_steps=4)
    proposals = [operator.propose(brief(PARENT, attempt), no_probe) for attempt in range(60)]
    lengths = {len(kept_strategies(proposal)) for proposal in proposals}
    assert {1, 2} <= lengths and max(lengths) <= 4
    stopped = [proposal for proposal in proposals if proposal.steps[-1].action == STOP.key]
    assert stopped and all(STOP not in proposal.decisions[0].offered for proposal in proposals)
    for proposal in proposals:
        assert proposal.strategy == kept_strategies(proposal)[0]
        text = PARENT.source
        for strategy in kept_strategies(proposal):
            text = Source(CODER.implement(text, strategy))
        assert text == proposal.source


def test_a_source_that_the_brief_already_holds_is_no_proposal():
    child = MtmcOperator(UniformPolicy(), CODER).propose(brief(PARENT), no_probe)
    known = relative(9, child.source, (child.strategy,))
    again = MtmcOperator(UniformPolicy(), CODER).propose(brief(PARENT, inspirations=(known,)), no_probe)
    assert again.source != child.source
    assert "candidate 9 again" in again.steps[0].detail


def test_learning_reaches_the_policy_and_witnessing_the_catalogue():
    policy = BanditPolicy()
    operator = MtmcOperator(policy, CODER)
    decision = operator.propose(brief(PARENT), no_probe).decisions[0]
    for _ in range(20):
        operator.learn(credit(decision, 0.5))
    chances = policy.propensities(decision.context, OFFERED, np.random.default_rng(0))
    name = OFFERED[decision.chosen].name
    named = [chance for chance, one in zip(chances, OFFERED, strict=True) if one.name == name]
    assert sum(named) > 0.6 and max(chances) == chances[decision.chosen]
    proposal = operator.propose(brief(PARENT, tried=[s for s in OFFERED if s.name != "rows-per-program"]), no_probe)
    before, after = evaluation(plan(kernel()), "p"), evaluation(plan(kernel(grid=(256, 1, 1))), "q")
    assert operator.witnessed(proposal, before, after) and not operator.witnessed(proposal, after, before)


def test_the_coder_refuses_in_words():
    with pytest.raises(OperatorFailed, match="no rewrite is called 'magic'"):
        CODER.implement(PARENT.source, Strategy("magic", "repair"))
    elsewhere = dataclasses.replace(OFFERED[0], region="kernel nowhere")
    with pytest.raises(OperatorFailed, match="nowhere"):
        CODER.implement(PARENT.source, elsewhere)


class Lazy:
    name = "lazy"

    def offers(self, module, task):
        return [Strategy("lazy", "repair")]

    def apply(self, module, strategy):
        return module.text


class Failing(Lazy):
    def apply(self, module, strategy):
        raise RewriteFailed("not today")


@pytest.mark.parametrize(("rewrite", "said"), [(Lazy(), "left the source as it was"), (Failing(), "not today")])
def test_a_rewrite_that_does_nothing_or_fails_is_the_operators_failure(rewrite, said):
    coder = RewriteCoder({"lazy": rewrite})
    with pytest.raises(OperatorFailed, match=said):
        coder.implement(PARENT.source, Strategy("lazy", "repair"))


def test_the_coder_keeps_few_sources_parsed_and_threads_agree(monkeypatch):
    monkeypatch.setattr("operators.micro.coder.PARSED", 2)
    coder = RewriteCoder()
    sources = [seed_of(task) for task in ("softmax", "rmsnorm", "layernorm", "softmax")]
    alone = [coder.offer(source, TASK) for source in sources]
    assert alone[0] == alone[3]
    results = []
    threads = [
        threading.Thread(target=lambda: results.append([coder.offer(source, TASK) for source in sources]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [alone] * 4


def test_a_step_waits_for_the_fusion_that_it_would_rule_out():
    text = lower_function(lambda x: torch.nn.functional.silu(x).sum(-1), [(torch.empty(64, 128),)])
    parent = relative(1, Source(text))
    offered = CODER.offer(parent.source, TASK)
    fusion = next(strategy for strategy in offered if strategy.name == "fuse-producer")
    chances = tuple(float(strategy.name == "one-pass-row") for strategy in offered)
    one_pass = Decision("test", offered, chances, chances.index(1.0))
    early, late = (StepWalk(brief(parent, tried=tried), CODER, no_probe) for tried in ((), (fusion,)))
    assert not early.take(one_pass) and not early.kept
    assert early.failure("mtmc", "").steps[0].detail == "it rules out a fusion that was not tried, through silu"
    assert late.take(one_pass) and [strategy.name for strategy in late.kept] == ["one-pass-row"]


def test_fusions_go_first_all_of_them_and_once():
    text = lower_function(lambda x: (torch.nn.functional.silu(x).abs() + 1.0).sum(-1), [(torch.empty(64, 128),)])
    parent, operator = relative(1, Source(text)), MtmcOperator(UniformPolicy(), CODER)
    made = [kept_strategies(operator.propose(brief(parent, attempt), no_probe)) for attempt in range(4)]
    whole = [kept for kept in made if [one.family for one in kept] == ["fusion"] * 3]
    assert len(whole) >= 3 and len({one for kept in whole for one in kept}) == 3
    again = [kept_strategies(operator.propose(brief(parent, n, tried=whole[0][:1]), no_probe)) for n in range(4)]
    assert sum([one.family == "fusion" for one in kept] == [True] * 3 + [False] for kept in again) >= 3
