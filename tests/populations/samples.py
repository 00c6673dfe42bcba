"""Small values to search with: an instant operator and an instant judge, made of real types."""

from __future__ import annotations

import math
import random

from evo_kernel.types import (
    Brief,
    Call,
    CaseCard,
    CaseKind,
    CheckResult,
    Decision,
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    PlanVerdict,
    Proposal,
    Purpose,
    Recorded,
    Source,
    Status,
    Step,
    Strategy,
    TaskCard,
)
from populations.population import LineagePopulation

TASK = "task-identity"
CARD = TaskCard(
    name="softmax",
    reference="def reference(x):\n    return x.softmax(-1)\n",
    allow="kernels",
    precision="ieee",
    atomics=False,
    cases=(CaseCard("large", CaseKind.SEARCH, {"m": 4096, "n": 1024}, (("float32", (4096, 1024), (1024, 1)),)),),
    description="row-wise softmax",
)
MODELED = Environment("modeled", "sm_90", "", "2.13.0", "3.9.0", True, 1, "namespaces")
MEASURED = Environment("measured", "NVIDIA H200", "570.1", "2.13.0", "3.9.0", True, 1, "namespaces")
STRATEGIES = tuple(
    Strategy(name, family, f"kernel k, line {line}", (("width", line),))
    for line, (name, family) in enumerate(
        [("online-softmax", "algorithm"), ("split-k", "tiling"), ("persistent", "launch"), ("hoist", "reordering")]
    )
)


def features(rng: random.Random) -> PlanFeatures:
    kernel = KernelFeatures(
        name="softmax_kernel",
        grid=(128, 1, 1),
        num_warps=4,
        num_stages=2,
        registers=40,
        spill_bytes=0,
        shared_bytes=1024,
        tensor_core=rng.choice(["none", "mma"]),
        data_path=rng.choice(["load", "cp.async"]),
        schedule=rng.choice(["plain", "persistent"]),
        instructions={"ld.global": 4, "mufu": 2},
        share=1.0,
    )
    return PlanFeatures(launches=rng.choice([1, 2]), aten_nodes=0, kernels=(kernel,), scratch_bytes=64)


def passed(
    source: Source, rng: random.Random, environment: Environment = MODELED, log_us: float | None = None
) -> Evaluation:
    """A passed score on two cases, around exp(log_us) µs."""
    level = rng.gauss(4.0, 0.5) if log_us is None else log_us
    measurements, verdicts, plans = [], [], []
    for case, offset in (("large", 0.2), ("small", -0.2)):
        median = math.exp(level + offset)
        plan = f"{rng.getrandbits(64):016x}"
        measurement = Measurement(
            case=case,
            plan=plan,
            median_us=median,
            iqr_us=median * 0.01,
            n=0 if environment.kind == "modeled" else 9,
            low_us=median * (1.0 if environment.kind == "modeled" else 0.98),
            high_us=median * (1.0 if environment.kind == "modeled" else 1.02),
            baselines_us={"eager": 100.0},
            light_share=rng.random(),
            features=features(rng),
            details={"celsius": 55.5},
            clock_mhz=None if environment.kind == "modeled" else 1980.0,
            power_w=None if environment.kind == "modeled" else 612.5,
            drift=None if environment.kind == "modeled" else -0.0012,
        )
        check = CheckResult(case, True, rng.random())
        measurements.append(measurement)
        plans.append((case, (("BLOCK", 1024),), plan))
        verdicts.append(PlanVerdict(case, plan, Status.PASSED, "", check, measurement))
    score = 100.0 / math.exp(level)
    return Evaluation(
        source=source.sha256,
        task=TASK,
        purpose=Purpose.SCORE,
        environment=environment,
        status=Status.PASSED,
        score=score,
        knobs=(("BLOCK", 1024),),
        checks=tuple(verdict.check for verdict in verdicts if verdict.check),
        measurements=tuple(measurements),
        plans=tuple(plans),
        verdicts=tuple(verdicts),
        charged={Purpose.SCORE: 2, Purpose.TUNE: rng.randrange(5)},
        gpu_s=rng.random(),
        wall_s=rng.random(),
    )


def failed(source: Source, status: Status = Status.WRONG, environment: Environment = MODELED) -> Evaluation:
    return Evaluation(
        source=source.sha256,
        task=TASK,
        purpose=Purpose.SCORE,
        environment=environment,
        status=status,
        reason=f"{status}: 3 of 4 elements differ on case large",
        checks=(CheckResult("large", False, 17.5, "off by 2"),),
        plans=(("large", (), "feed" * 16),),
        verdicts=(
            PlanVerdict("large", "feed" * 16, status, "off by 2", CheckResult("large", False, 17.5, "off by 2")),
        ),
        charged={Purpose.SCORE: 1},
    )


def propose(brief: Brief, rng: random.Random, text: str | None = None) -> Proposal:
    chosen = rng.randrange(len(STRATEGIES))
    decision = Decision("uniform", STRATEGIES, (0.25, 0.25, 0.25, 0.25), chosen, (0.5, float(brief.generation)))
    return Proposal(
        source=Source(text if text is not None else f"# attempt {brief.attempt}\ndef run(x): ..."),
        operator="mtmc",
        strategy=STRATEGIES[chosen],
        decisions=(decision,),
        steps=(Step("rewrite", "kept", "line 3", 0.1),),
        calls=(Call("embedded", 100, 20, 5, rng.choice([None, 0.25]), 1.5, "", "[]"),),
        probes=rng.randrange(3),
        wall_s=0.5,
    )


def search(population: LineagePopulation, attempts: int, rng: random.Random, witnessed: bool = True) -> list[Recorded]:
    """Seed, then so many attempts: about a tenth fail as attempts, a fifth as kernels."""
    if not population.counters().candidates:
        seed = population.plant(Source("# seed\ndef run(x): ..."))
        population.tell(seed, passed(seed.proposal.source, rng, population.environment))
    done = []
    for _ in range(attempts):
        brief = population.ask()
        proposal = propose(brief, rng)
        fate = rng.random()
        if fate < 0.1:
            population.fail(brief, "mtmc", "no edit applied", proposal)
            continue
        recorded = population.record(brief, proposal)
        source = proposal.source
        if fate < 0.3:
            verdict = failed(source, rng.choice([Status.WRONG, Status.BUILD_ERROR]), population.environment)
        else:
            verdict = passed(source, rng, population.environment)
        population.tell(recorded, verdict, witnessed and rng.random() < 0.8)
        done.append(recorded)
    return done
