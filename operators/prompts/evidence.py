"""Evaluations in words and tables, for models and agents: verdicts, times, resources, kinds of faults."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from evo_kernel.types import (
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    ScoredCandidate,
    Status,
    Strategy,
    Tried,
    content_hash,
)
from evo_kernel.types.notes import Evidence, Version
from operators.macro.catalogue import MULTIPROCESSORS, description
from operators.prompts.parts import one_line, rows, tokens


class EditFault(enum.StrEnum):
    """Why an edit did not stand."""

    FORMAT = "format"  # the answer is in no form that can be applied, or a block does not fit
    COMPILE = "compile"
    LOAD_STORE = "load-store"  # reads or writes the wrong memory, or leaves some unwritten
    CALCULATION = "calculation"  # computes something else
    LAUNCH = "launch"  # too much shared memory or registers, a wrong grid, a kernel that does not start
    RULE = "rule"  # breaks a rule of the task
    TIMEOUT = "timeout"
    MACHINE = "machine"  # not the kernel's: nothing to repair


_LAUNCH = (
    "out of resource", "out of shared memory", "shared memory", "too many resources", "out of memory", "more memory",
    "out of gpu memory",
    "grid", "num_warps", "registers per", "launch", "cooperative", "cluster",
)  # fmt: skip
_MEMORY = (
    "never written", "writes outside", "changes its input", "out of bounds", "out-of-bounds", "illegal address",
    "illegal memory", "misaligned", "segmentation", "outside a buffer", "reads outside", "nothing wrote",
)  # fmt: skip
_PYTHON = ("attributeerror", "typeerror", "nameerror", "unboundlocalerror")
"""What Python raises where text says something that has no meaning."""

ADVICE = {
    EditFault.FORMAT: "Mend the answer's form; the idea was not judged.",
    EditFault.COMPILE: "The module does not build. Look at types, shapes and names at the place that the message "
    "gives; block shapes are powers of two, and both branches of a value must have one type.",
    EditFault.LOAD_STORE: "An address or a mask is wrong. Check the bounds of every axis, strides against the argument "
    "they belong to, `other=` of masked loads, and that the grid covers all of the output.",
    EditFault.CALCULATION: "The result is wrong where memory seems right. Check the order of operations, initial "
    "values of accumulators and maxima, what masked lanes contribute, and the type in which sums are kept.",
    EditFault.LAUNCH: "The kernel compiles and does not start. Check grid, block sizes, stages and warps against "
    "shared memory and registers.",
    EditFault.RULE: "The task forbids this. Do it inside a kernel, without reading tensor values on the host.",
    EditFault.TIMEOUT: "It does not end in time. Check that every loop ends, and how much work one program does.",
    EditFault.MACHINE: "",
}


def fault_of(evaluation: Evaluation) -> EditFault | None:
    """The category of an evaluation that did not pass; None for one that did."""
    said = evaluation.reason.lower()
    match evaluation.status:
        case Status.PASSED | Status.REFUTED:
            return None
        case Status.BUILD_ERROR:
            return EditFault.LAUNCH if any(word in said for word in _LAUNCH[:4]) else EditFault.COMPILE
        case Status.WRONG:
            return EditFault.LOAD_STORE if any(word in said for word in _MEMORY) else EditFault.CALCULATION
        case Status.RUNTIME_ERROR:
            if any(f"{word}:" in said for word in _PYTHON):
                return EditFault.COMPILE
            if any(word in said for word in _MEMORY):
                return EditFault.LOAD_STORE
            return EditFault.LAUNCH if any(word in said for word in _LAUNCH) else EditFault.LOAD_STORE
        case Status.REJECTED:
            return EditFault.RULE
        case Status.TIMEOUT:
            return EditFault.TIMEOUT
        case _:
            return EditFault.MACHINE


REASON = 120  # tokens of why something failed, or of knobs, in a line
NEAR = 0.8  # share of light from which little is left to gain
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
        signs.append("near the floor")
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
    outcome = str(entry.status or "came to nothing, or is not judged yet")
    if entry.status is not None and entry.log_gain is not None:
        outcome += f", {(math.exp(entry.log_gain) - 1) * 100:+.1f} % speed"
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


TABLE_TOKENS = 1200
REASON_CHARACTERS = 2400  # characters of a compiler's message


def told(evaluation: Evaluation, name: str) -> str:
    """A verdict with its evidence: status, times by case, resources; or the fault, its category, where to look."""
    fault = fault_of(evaluation)
    if fault is None:
        return f"{name}: {evidence(evaluation, TABLE_TOKENS)}\nsamples a case, at least: {samples_of(evaluation)}"
    reason = evaluation.reason
    if len(reason) > REASON_CHARACTERS:
        reason = f"{reason[: REASON_CHARACTERS // 2]}\n[…]\n{reason[-REASON_CHARACTERS // 2 :]}"
    return f"{name}: {evaluation.status} (category: {fault})\n{reason}\n{ADVICE[fault]}".rstrip()


def samples_of(evaluation: Evaluation) -> int:
    """The fewest samples that any case's time rests on; 0 where times are modeled, or nothing was timed."""
    return min((one.n for one in evaluation.measurements), default=0)


def plan_hash(evaluation: Evaluation) -> str:
    """The same plans on the same cases are the same kernel, whatever its text; "" where there are no plans."""
    plans = sorted({(case, plan) for case, _, plan in evaluation.plans})
    return content_hash(plans)[:16] if plans else ""


def facts_of(evaluation: Evaluation, name: str, idea: str) -> dict[str, Any]:
    """What is to be remembered of it, as JSON."""
    found = evaluation
    return {
        "evaluation": name, "purpose": str(found.purpose), "source": found.source, "status": str(found.status),
        "fault": str(fault_of(found) or ""), "reason": found.reason[:300], "score": found.score,
        "samples": samples_of(found), "plan": plan_hash(found), "idea": idea, "knobs": list(map(list, found.knobs)),
    }  # fmt: skip


def version_line(version: Version) -> str:
    score = "" if version.score is None else f" score {version.score:.3f}"
    percent = (math.exp(version.log_gain or 0.0) - 1) * 100
    gain = "" if version.log_gain is None else f", {percent:+.1f} % speed over its parent"
    parent = f" from C{version.parent}" if version.parent else ""
    what = f" {version.strategy}" if version.strategy else ""
    return f"C{version.number}{parent} [{version.operator}{what}] {version.status or 'not judged'}{score}{gain}"


def evidence_of(relative: ScoredCandidate) -> Evidence | None:
    """What a note may cite of a version; None while it is not judged."""
    found = relative.evaluation
    if found is None:
        return None
    return Evidence(f"C{relative.candidate}", samples_of(found), str(found.status), found.score)
