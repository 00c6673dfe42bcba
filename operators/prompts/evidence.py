"""Evaluations in words and tables: what a model reads of a kernel's time, resources and fate."""

from __future__ import annotations

import dataclasses
import math

from evo_kernel.types import Evaluation, KernelFeatures, Measurement, PlanFeatures, Strategy, Tried
from operators.macro.catalogue import description
from operators.macro.strategy_witnesses import MULTIPROCESSORS
from operators.prompts.parts import one_line, rows, tokens

REASON = 120  # tokens of why something failed, or of knobs, in a line
NEAR = 0.8  # share of the speed of light from which little is left to gain
_CASES = ("| case | time µs | speed-up | of light | launches | bottleneck |", "| --- | --- | --- | --- | --- | --- |")
_KERNELS = (
    "| kernel | share | grid | warps | stages | registers | spilled B | shared B | mma | data path | schedule |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def evidence(evaluation: Evaluation | None, budget: int) -> str:
    """Verdict, a table of cases (slowest first) and one of the slowest case's kernels (largest share first)."""
    said = verdict(evaluation)
    if evaluation is None or not evaluation.measurements or budget <= 0:
        return said if budget > 0 else ""
    slowest = sorted(evaluation.measurements, key=lambda m: -m.median_us)
    left = budget - tokens(said) - 4
    kernels = slowest[0].features.kernels if slowest[0].features else ()
    order = sorted(kernels, key=lambda k: -k.share)
    cases = rows(_CASES, [_case(m) for m in slowest], left * 3 // 5 if kernels else left)
    resources = rows(_KERNELS, [_kernel(k) for k in order], left - tokens(cases))
    named = f"Kernels of case {slowest[0].case}:\n{resources}" if resources else ""
    return "\n\n".join(part for part in (said, cases, named) if part)


def verdict(evaluation: Evaluation | None) -> str:
    """One line: how good it is and where that was found, or why it is none."""
    if evaluation is None:
        return "Not judged yet."
    if not evaluation.passed:
        return f"{evaluation.status}: {one_line(evaluation.reason, REASON)}"
    where = evaluation.environment.label
    if evaluation.score is None:
        return f"Correct; not timed ({where})."
    knobs = ", ".join(f"{name}={value}" for name, value in evaluation.knobs)
    tuned = f" The tuner has set {one_line(knobs, REASON)}." if knobs else ""
    return f"Correct; score {evaluation.score:.3f} (geometric mean of baseline ÷ kernel), {where}.{tuned}"


def bottleneck(measurement: Measurement) -> str:
    """What seems to hold a case back: the largest modeled term where there is one, else signs in its resources."""
    terms = {name: value for name, value in measurement.details.items() if name in TERMS and value > 0}
    signs = [max(terms, key=lambda name: terms[name])] if terms else []
    if measurement.light_share is not None and measurement.light_share >= NEAR:
        signs.append("near the speed of light")
    signs += _signs(measurement.features)
    return ", ".join(signs) or "unknown"


TERMS = ("dram", "l2", "tensor", "issue", "atomics", "exposed", "tail", "launch")
"""Terms of the time model (`Measurement.details` of modeled times) that can be a bottleneck."""


def strategy_line(strategy: Strategy) -> str:
    tail = ", ".join(f"{name}={value}" for name, value in strategy.parameters)
    line = " ".join(part for part in (strategy.name, f"at {strategy.region}" if strategy.region else "", tail) if part)
    return one_line(line, REASON)


def undescribed(strategy: Strategy) -> Strategy:
    """Without the words that say what it does: a path of names is long enough."""
    words = description(strategy)
    return dataclasses.replace(strategy, parameters=tuple(pair for pair in strategy.parameters if pair[1] != words))


def tried_line(entry: Tried) -> str:
    if entry.status is None:
        outcome = "came to nothing, or is not judged yet"
    elif entry.log_gain is None:
        outcome = str(entry.status)
    else:
        outcome = f"{entry.status}, {(math.exp(entry.log_gain) - 1) * 100:+.1f} % speed"
    return f"- {strategy_line(entry.strategy)}: {outcome}"


def _case(measurement: Measurement) -> str:
    light = "" if measurement.light_share is None else f"{measurement.light_share:.0%}"
    speedup = f"{measurement.speedup:.2f}" if measurement.baselines_us else ""
    launches = "" if measurement.features is None else str(measurement.features.launches)
    cells = (measurement.case, f"{measurement.median_us:.2f}", speedup, light, launches, bottleneck(measurement))
    return f"| {' | '.join(cells)} |"


def _kernel(kernel: KernelFeatures) -> str:
    grid = "x".join(map(str, kernel.grid))
    cells = (
        kernel.name, f"{kernel.share:.0%}", grid, kernel.num_warps, kernel.num_stages, kernel.registers,
        kernel.spill_bytes, kernel.shared_bytes, kernel.tensor_core, kernel.data_path, kernel.schedule,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _signs(plan: PlanFeatures | None) -> list[str]:
    kernel = plan.dominant if plan else None
    if plan is None or kernel is None:
        return []
    found = []
    if kernel.spill_bytes:
        found.append("registers spill")
    if math.prod(kernel.grid) < MULTIPROCESSORS:
        found.append(f"{math.prod(kernel.grid)} programs for {MULTIPROCESSORS} multiprocessors")
    if plan.launches + plan.aten_nodes > 1:
        found.append(f"{plan.launches + plan.aten_nodes} launches")
    return found
