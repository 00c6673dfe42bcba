"""Briefs, evaluations and plans made by hand, and the built-in seeds, for tests of policies and operators."""

from __future__ import annotations

from collections.abc import Sequence

from evo_kernel.tasks.builtin import text_of
from evo_kernel.types import (
    Brief,
    CaseCard,
    CaseKind,
    Credit,
    Decision,
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    Proposal,
    Purpose,
    ScoredCandidate,
    Source,
    Status,
    Strategy,
    TaskCard,
    Tried,
)

ENVIRONMENT = Environment("modeled", "sm_90", "none", "2", "3", True, 1, "none")
SHAPE = ("float32", (2048, 1024), (1024, 1))
CASES = (
    CaseCard("small", CaseKind.CHECK, {"m": 7, "n": 33}, (("float32", (7, 33), (33, 1)),)),
    CaseCard("large", CaseKind.SEARCH, {"m": 2048, "n": 1024}, (SHAPE,)),
)
TASK = TaskCard("softmax", "", "kernels", "ieee", False, CASES)


def seed_of(task: str) -> Source:
    return Source(text_of(task, "seed.py"))


def kernel(**changes) -> KernelFeatures:
    fields = {
        "name": "a", "grid": (1024, 1, 1), "num_warps": 4, "num_stages": 1, "registers": 32, "spill_bytes": 0,
        "shared_bytes": 0, "tensor_core": "none", "data_path": "load", "schedule": "plain",
        "instructions": {"ld.global": 6, "st.global": 2, "mufu": 8, "fmul": 8, "fma": 4, "int": 20}, "share": 1.0,
    }  # fmt: skip
    fields |= changes
    plain = {name: n for name, n in fields["instructions"].items() if name not in ("all", "loops", "hinted")}
    fields["instructions"] = fields["instructions"] | {"all": sum(plain.values())}
    return KernelFeatures(**fields)


def plan(*kernels: KernelFeatures, scratch_bytes: int = 0) -> PlanFeatures:
    return PlanFeatures(len(kernels), 0, kernels, scratch_bytes)


def evaluation(features: PlanFeatures | None, plan_hash: str = "p", us: float = 10.0) -> Evaluation:
    measured = Measurement("large", plan_hash, us, 0.0, 0, us, us, {"eager": 20.0}, 0.3, features)
    return Evaluation(
        "s", "t", Purpose.SCORE, ENVIRONMENT, Status.PASSED, score=20.0 / us, measurements=(measured,)
    )  # fmt: skip


def broken(reason: str = "off by one") -> Evaluation:
    return Evaluation("s", "t", Purpose.SCORE, ENVIRONMENT, Status.WRONG, reason)


def relative(
    candidate: int, source: Source, strategies: Sequence[Strategy] = (), judged: bool = True
) -> ScoredCandidate:
    verdict = evaluation(plan(kernel())) if judged else broken()
    return ScoredCandidate(candidate, source, len(strategies), 0, verdict, tuple(strategies))


def brief(
    parent: ScoredCandidate,
    attempt: int = 1,
    inspirations: Sequence[ScoredCandidate] = (),
    tried: Sequence[Strategy] = (),
) -> Brief:
    entries = tuple(Tried(strategy, Status.PASSED, 0.0) for strategy in tried)
    return Brief(attempt, TASK, parent, tuple(inspirations), entries, 0, (7, attempt), ENVIRONMENT)


def credit(decision: Decision, reward: float, witnessed: bool = True, depth: int = 0, operator: str = "mtmc") -> Credit:
    name = decision.offered[decision.chosen].name if witnessed else "other"
    return Credit(1, 1, operator, name, witnessed, reward, reward, depth, decision)


def no_probe(source: Source) -> Evaluation:
    raise AssertionError("nobody was to probe")


def kept_strategies(proposal: Proposal) -> tuple[Strategy, ...]:
    """Every strategy that is in the proposal's source, oldest first."""
    chosen = [decision.offered[decision.chosen] for decision in proposal.decisions]
    kept, at = [], 0
    for step in proposal.steps:
        if at < len(chosen) and step.action == chosen[at].key:
            kept += [chosen[at]] if step.outcome == "kept" and chosen[at].name != "stop" else []
            at += 1
    if at < len(chosen) or not chosen:  # not written by a walk
        return (proposal.strategy,) if proposal.strategy else ()
    return tuple(kept)
