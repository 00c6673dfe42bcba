"""Verdicts, confirmations, baselines and costs as text, table and JSON.

Imports nothing slow: rich comes when something is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evo_kernel.observe.formatting import (
    against,
    age_text,
    busy_text,
    counts_text,
    denominator,
    fault_lines,
    held_texts,
    score_text,
    stages_text,
)
from evo_kernel.types import CaseKind, CheckResult, Environment, Evaluation, Gain, Measurement, Rival, escaped
from evo_kernel.types.bottleneck import bottleneck_text
from evo_kernel.types.gpus import modeled_gpu
from evo_kernel.types.promotion import FIRST

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from evo_kernel.app.variants import Variant
    from evo_kernel.fitness.timing.ceilings import Ceilings
    from populations.lineage import PathStep
    from populations.statistics import Best, ModelUse, OperatorUse, RunStatus


def evaluation_data(evaluation: Evaluation) -> dict[str, Any]:
    """An Evaluation as one object for scripts; times in µs."""
    environment = evaluation.environment
    return {
        "status": str(evaluation.status),
        "reason": evaluation.reason,
        "score": evaluation.score,
        "against": against(m.baselines_us for m in evaluation.measurements),
        "purpose": str(evaluation.purpose),
        "environment": asdict(environment) | {"label": environment.label, "key": environment.key},
        "knobs": dict(evaluation.knobs),
        "checks": [{"case": c.case, "passed": c.passed, "error": c.error if _was_compared(c) else None,
                    "reason": c.reason} for c in evaluation.checks],
        "mixed": mixed_data(evaluation),
        "comparisons": [asdict(one) for one in evaluation.comparisons],
        "cases": [{"case": m.case, "us": m.median_us, "low_us": m.low_us, "high_us": m.high_us, "samples": m.n,
                   "baselines_us": dict(m.baselines_us), "denominator": denominator(m.baselines_us) or None,
                   "speedup": m.speedup if m.baselines_us else None, "floor_us": m.floor_us,
                   "light_share": m.light_share, "compared": asdict(m.compared) if m.compared is not None else None,
                   "bottleneck": bottleneck_text(m), "plan": m.plan} for m in evaluation.measurements],
        "evaluations": dict(evaluation.charged),
        "wall_s": evaluation.wall_s,
        "gpu_s": evaluation.gpu_s,
    }  # fmt: skip


def show_evaluation(evaluation: Evaluation, faults: Mapping[str, str] | None = None) -> None:
    """A verdict for people: status, checks, score and times. `faults`: why baselines could not be timed, by name."""
    from evo_kernel.observe.live import open_console, say

    console = open_console()
    label = evaluation.environment.label
    reason = f": {evaluation.reason}" if evaluation.reason else ""
    alone = ", no baseline" if any(not m.baselines_us for m in evaluation.measurements) else ""
    say(console, f"{evaluation.status}{alone}, judged where scores are {label}{reason}")
    for check in evaluation.checks:
        mark = "ok" if check.passed else "NO"
        error = f": off by {check.error:.3g}x what is allowed" if _was_compared(check) else ""
        say(console, f"  {mark} {check.case}{error}")
    say(console, *compared_lines(evaluation))
    if alone:
        show_cases(console, evaluation, label)
        say(console, *(f"no baseline {name}: {why}" for name, why in (faults or {}).items()))
    if evaluation.score is not None:
        say(console, f"score {score_text(evaluation)}, {label}", style="bold")
        show_cases(console, evaluation, label)
    say(console, *comparison_lines(evaluation, in_population=False), *mixed_lines(evaluation))


def compared_lines(evaluation: Evaluation) -> list[str]:
    """For every timed size that was compared: which programs ran, how many elements were compared, and the error."""
    lines = []
    for m in evaluation.measurements:
        if (found := m.compared) is not None:
            ran = "all programs" if found.whole else "programs that were drawn"
            part = "all" if found.elements == found.of else f"{found.elements:,} of"
            looked = f"{ran}, {part} {found.of:,} output elements compared"
            lines.append(f"  ok {m.case}, timed: off by {found.error:.3g}x what is allowed ({looked})")
    return lines


def show_evaluations(variants: Sequence[Variant], evaluations: Sequence[Evaluation]) -> None:
    """Verdicts of several variants as one table, fastest first, above baselines and floor; then why others failed."""
    from rich.table import Table

    from evo_kernel.observe.live import open_console, say

    console = open_console()
    found = sorted(zip(variants, evaluations, strict=True), key=lambda one: -(one[1].score or 0.0))
    measured = {m.case: m for m in max((e.measurements for e in evaluations), key=len)}
    over = against(m.baselines_us for m in measured.values())
    table = Table(title=f"times in µs, {evaluations[0].environment.label}", title_justify="left")
    for column in ("file", "setting", "status", "score", *measured):
        justify = "left" if column in ("file", "setting", "status") else "right"
        table.add_column(escaped(column), justify=justify, overflow="fold")
    for variant, one in found:
        times = {m.case: f"{m.median_us:.1f}" for m in one.measurements}
        score = f"{one.score:.3f}" if one.score is not None else "-"
        table.add_row(
            escaped(variant.file), variant.setting, str(one.status), score, *(times.get(case, "-") for case in measured)
        )
    table.add_section()
    for name in sorted({name for m in measured.values() for name in m.baselines_us}):
        known = [m.baselines_us.get(name) for m in measured.values()]
        table.add_row(escaped(name), "", "baseline", "-", *(f"{us:.1f}" if us is not None else "-" for us in known))
    if measured:
        table.add_row("floor", "", "-", "-", *(held_texts(m, 1)[0] for m in measured.values()))
    console.print(table)
    say(console, *([f"score: {over} / kernel"] if over else []))
    say(console, *(f"{variant.name}: {one.status}: {one.reason}" for variant, one in found if not one.passed))


def path_lines(path: Sequence[PathStep]) -> list[str]:
    """How a candidate was made: the score of its root, and what each step gained."""
    lines = ["path from the root: its score as it came, times the gains (tuning of knobs included), is the score:"]
    for number, step in enumerate(path):
        gain = math.exp(step.log_gain) if step.log_gain is not None else None
        value, sign = (gain, "×") if number else (step.score, " ")
        lines.append(f"  {sign} {f'{value:.3f}x' if value is not None else '-':>7}  {step.candidate:>5}  {step.action}")
    return lines


def bottleneck_lines(evaluation: Evaluation) -> list[str]:
    """What takes a kernel's time: the largest modeled terms, launches, and what these hand on through memory."""
    lines = [bottleneck_text(m) for m in evaluation.measurements]
    if len(set(lines)) == 1:
        return [f"bottleneck: {lines[0]}"]
    return [f"bottleneck on {m.case}: {line}" for m, line in zip(evaluation.measurements, lines, strict=True)]


def show_cases(console: Console, evaluation: Evaluation, label: str) -> None:
    """The table of cases, what takes the time, and why a column is empty."""
    from evo_kernel.observe.live import say

    console.print(case_table(evaluation, label))
    say(console, *unknown_lines(evaluation), *bottleneck_lines(evaluation))


def unknown_lines(evaluation: Evaluation) -> list[str]:
    """Why a table of times has dashes; nothing where it has none."""
    floorless = [m.case for m in evaluation.measurements if m.light_share is None]
    alone = [m.case for m in evaluation.measurements if not m.baselines_us]
    return [
        *([f"floor not known on {', '.join(floorless)}: the reference does not run on tensors without data, so say "
           "bytes(case) and flops(case) in the task file"] if floorless else []),
        *([f"speed-up not known on {', '.join(alone)}: no baseline was timed"] if alone else []),
    ]  # fmt: skip


def case_table(evaluation: Evaluation, label: str) -> Table:
    """Per case: time, each baseline, the floor, speed-up over the fastest baseline (marked), share of light."""
    from rich.table import Table

    names = sorted({name for m in evaluation.measurements for name in m.baselines_us})
    marked = " (* the denominator)" if len(names) > 1 else ""
    table = Table(title=f"times in µs, {label}{marked}", title_justify="left")
    for column in ("case", "candidate", *names, "floor", "speed-up", "share of light"):
        table.add_column(escaped(column), justify="left" if column == "case" else "right")
    for m in evaluation.measurements:
        fastest = denominator(m.baselines_us) if marked else ""
        marks = {name: "*" if name == fastest else " " if marked else "" for name in names}
        baselines = [f"{m.baselines_us[n]:.1f}{marks[n]}" if n in m.baselines_us else f"-{marks[n]}" for n in names]
        table.add_row(escaped(m.case), f"{m.median_us:.1f}", *baselines, *held_texts(m, 1))
    return table


def _was_compared(check: CheckResult) -> bool:
    """Whether its error is a number: a check may also fail before there is anything to compare."""
    return check.error < 1e30 if check.passed else 1.0 < check.error < 1e30


def survival_line(confirmation: Evaluation | None, in_population: bool = True) -> str:
    """One sentence: score on hidden cases, gain over the first kernel, and how much of it survived, or what of a
    modeled confirmation was new; empty where nothing was compared. `in_population`: candidates have numbers."""
    found = confirmation.gain_over(Rival.FIRST, CaseKind.SEARCH) if confirmation is not None else None
    if confirmation is None or found is None:
        return ""
    modeled = confirmation.environment.kind == "modeled"
    first = f"the first kernel (candidate {FIRST})" if in_population else "the task's first kernel"
    line = f"gain over {first}, {'modeled' if modeled else 'by fresh pairs'}: {found} on search cases"
    hidden = confirmation.gain_over(Rival.FIRST, CaseKind.CONFIRM)
    if hidden is not None:
        line = f"hidden cases: {score_text(confirmation)}; {line}, {hidden} on hidden cases"
    if modeled:
        return f"{line}; {renewed_text(hidden is not None)}"
    if confirmation.survived is None or confirmation.claimed is None:
        return line
    return f"{line}; {confirmation.survived:.0%} of the claimed {confirmation.claimed:.3f}x survived"


def renewed_text(hidden: bool) -> str:
    """What a confirmation without a GPU does anew; `hidden`: the task has hidden sizes."""
    return f"new: {'hidden sizes and ' * hidden}checks with new inputs of every kind; times are the same model's"


def confirmed_lines(confirmation: Evaluation | None) -> list[str]:
    """For people: the verdict, what survived, and every comparison."""
    if confirmation is None:
        return []
    verdict = "confirmed" if confirmation.passed else f"not confirmed, {confirmation.status}: {confirmation.reason}"
    return [verdict, *comparison_lines(confirmation)]


def comparison_lines(confirmation: Evaluation, in_population: bool = True) -> list[str]:
    """For people: what survived of the gain, and every comparison. `in_population`: see `survival_line`."""
    line = survival_line(confirmation, in_population)
    lines = [line] if line else []
    width = max((len(one.case) for one in confirmation.comparisons), default=0)
    for one in confirmation.comparisons:
        gain = Gain(one.ratio, one.low, one.high)
        claim = f", {one.claimed:.3f}x claimed" if one.claimed is not None else ""
        pairs = f", {one.pairs} pairs" if one.pairs else ""
        lines.append(f"  {one.case:<{width}}  {one.kind}, to the {one.against}: {gain}, {one.verdict}{pairs}{claim}")
    return lines


def confirmed_data(confirmation: Evaluation | None) -> dict[str, Any] | None:
    """For scripts; None where nothing was confirmed or refuted."""
    if confirmation is None:
        return None
    gain = confirmation.gain_over(Rival.FIRST, CaseKind.SEARCH)
    hidden = confirmation.gain_over(Rival.FIRST, CaseKind.CONFIRM)
    return {
        "status": str(confirmation.status),
        "reason": confirmation.reason,
        "claimed": confirmation.claimed,
        "found": asdict(gain) if gain is not None else None,
        "survived": confirmation.survived,
        "hidden": asdict(hidden) if hidden is not None else None,
        "comparisons": [asdict(one) for one in confirmation.comparisons],
    }


MODELED_BY_BYTES = (
    "the model prices torch operations by the bytes they move only: do not believe a speed-up over them; measure it "
    "on a GPU"
)


def torch_calls(measurement: Measurement) -> dict[str, int]:
    """Operation → calls in the plan of a measurement."""
    return {name: int(n) for name, n in measurement.details.items() if name.startswith("aten.")}


def own_share(measurement: Measurement) -> float | None:
    """Share of the plan's time in its own kernels, 0 to 1; None where the plan was timed as a whole only."""
    return measurement.details.get("own_share")


def mixed_data(evaluation: Evaluation) -> dict[str, Any]:
    """Per case that has any, for scripts."""
    return {
        m.case: {"torch_operations": torch_calls(m), "own_kernels_share": own_share(m)}
        for m in evaluation.measurements
        if torch_calls(m)
    }


def mixed_lines(evaluation: Evaluation) -> list[str]:
    """For people: empty when every operation is in the candidate's own kernels."""
    lines: list[str] = []
    for m in evaluation.measurements:
        calls = torch_calls(m)
        if not calls:
            continue
        named = ", ".join(name.removeprefix("aten.") + (f" ({n} times)" if n > 1 else "") for name, n in calls.items())
        share = own_share(m)
        kind = evaluation.environment.kind
        told = f"{share:.0%} of the time is in its own kernels, {kind}" if share is not None else (
            "the share of its own kernels was not measured apart"
        )  # fmt: skip
        lines.append(f"{m.case}: torch operations left in the plan: {named}; {told}")
    if lines and evaluation.environment.kind == "modeled":
        lines.append(f"note: {MODELED_BY_BYTES}")
    return lines


def times_text(status: RunStatus, case: str) -> str:
    """The leader's time on a case, baselines (the fastest first: it is the denominator) and the floor."""
    ranked = sorted(status.baselines.get(case, {}).items(), key=lambda item: item[1])
    told = [f"{name} {us:.1f} µs" + " (denominator)" * (n == 0) for n, (name, us) in enumerate(ranked)]
    if (found := status.times.get(case)) is not None and status.leader is not None:
        told.insert(0, f"candidate {status.leader.candidate} {found.us:.1f} µs")
        if found.floor_us is not None:
            told.append(f"floor {found.floor_us:.1f} µs (share of light {found.light_share:.0%})")
    return ", ".join(told)


def ceilings_of(environment: Environment | None, stored: Mapping[str, float]) -> tuple[Ceilings | None, str]:
    """What shares of light refer to, and where that is from: as it was `measured`, else of the `table` where times are
    modeled, else None and an empty text."""
    from evo_kernel.fitness.costmodel.targets import target_for
    from evo_kernel.fitness.timing.ceilings import Ceilings

    arch = environment.device.removeprefix("sm_") if environment is not None else ""
    if measured := Ceilings.from_data(stored):
        return measured, "measured"
    if environment is not None and environment.kind == "modeled" and arch.isdecimal():
        return Ceilings.of_target(target_for(int(arch))), "table"
    return None, ""


def ceilings_data(environment: Environment | None, stored: Mapping[str, float]) -> dict[str, Any]:
    """For scripts: rates by name with unit, and where they are from."""
    found, source = ceilings_of(environment, stored)
    return {"ceilings": found.as_data() if found is not None else {}, "ceilings_from": source or None}


def ceilings_line(environment: Environment, stored: Mapping[str, float]) -> str:
    """For people."""
    found, source = ceilings_of(environment, stored)
    if found is None:
        return f"not measured yet ({environment.device})"
    return f"{found.text}, " + (
        f"from the table for {modeled_gpu(environment.device)}" if source == "table" else environment.label
    )


def held_lines(
    environment: Environment | None, faults: Mapping[str, Mapping[str, str]], ceilings: Mapping[str, float]
) -> list[str]:
    """What times are held against, beside the baselines."""
    return [*fault_lines(faults), f"ceilings: {ceilings_line(environment, ceilings)}"] if environment else []


WITH_MODEL = ("llm-mtmc", "llm-crossover", "avo")
"""Operators that ask a language model; the first goes on with rules where none answers."""


def operator_lines(operators: Sequence[OperatorUse]) -> list[tuple[str, str]]:
    """What came of each operator's attempts."""
    return [
        (
            "operator",
            f"{one.operator}: {one.attempts} attempts, {one.candidates} candidates, {one.passed} passed"
            + (f", {one.by_rules} by rules: no model answered" if one.by_rules and one.operator in WITH_MODEL else "")
            + (f", best {one.best_score:.3f}x" if one.best_score is not None else "")
            + (f", ${one.dollars:.2f}" if one.dollars else ""),
        )
        for one in operators
    ]


def model_lines(models: Sequence[ModelUse]) -> list[tuple[str, str]]:
    """What each language model was asked, and what that cost."""
    return [
        (
            "model",
            f"{one.model}: {one.calls} calls, {one.tokens_in} tokens in ({one.cached_share:.0%} cached), "
            f"{one.tokens_out} out, ${one.dollars:.4f}"
            + (f" and {one.unpriced} calls of unknown price" if one.unpriced else "")
            + f", {one.errors} errors",
        )
        for one in models
    ]


def status_lines(found: RunStatus) -> list[tuple[str, str]]:
    """Where a run stands: names and values."""
    label = found.environment.label if found.environment else "not judged yet"
    return [*_counts(found, label), *_machine(found)]


def _counts(found: RunStatus, label: str) -> list[tuple[str, str]]:
    """What was done and spent."""
    writer = f"written by process {found.writer[0]} on {found.writer[1]}" if found.writer else "not running"
    return [
        ("population", f"{found.path} ({found.task}), {writer}"),
        ("best", _standing(found, found.best, label)),
        ("champion", _standing(found, found.champion, label)),
        *_survived(found),
        ("attempts", f"{found.attempts}; {found.open_attempts} open, {found.failures} without a proposal, "
                     f"{found.abandoned} abandoned" + f", {found.handed_out} handed out" * bool(found.handed_out)),
        ("candidates", f"{found.candidates}; {counts_text(found.verdicts) or 'none judged'}; {found.pending} pending"),
        ("evaluations", counts_text(found.evaluations) or "none"),
        ("cost", f"{found.wall_s / 60:.1f} min over {found.sessions} session(s), {found.gpu_s:.1f} s of GPU, "
                 f"${found.dollars:.2f}, {found.tokens} tokens"),
        *operator_lines(found.operators),
        *model_lines(found.models),
    ]  # fmt: skip


def _standing(status: RunStatus, found: Best | None, label: str) -> str:
    if found is None:
        return "none yet"
    score = f"{found.score:.3f}x {against(status.baselines.values())}".rstrip() if found.score else "passed"
    return f"{score} by candidate {found.candidate}, {'' if found.confirmed else 'not '}confirmed, {label}"


def _survived(status: RunStatus) -> list[tuple[str, str]]:
    """How much of the champion's gain its confirmation found; without a GPU, what of the confirmation was new."""
    champion = status.champion
    if champion is None:
        return []
    hidden = f"{champion.hidden:.3f}x the first kernel on hidden cases" if champion.hidden is not None else ""
    if champion.hidden_score is not None:
        score = f"{champion.hidden_score:.3f}x {against(status.baselines.values())}".rstrip()
        hidden = f"{score} and {hidden}"
    if status.environment is not None and status.environment.kind == "modeled":
        return [("confirmed", "; ".join(filter(None, (hidden, renewed_text(bool(hidden))))))]
    if champion.survived is None:
        return []
    share = f"{champion.survived:.0%} of the claimed {champion.claimed:.3f}x over the first kernel"
    return [("survived", "; ".join(filter(None, (share, hidden))))]


def _machine(found: RunStatus) -> list[tuple[str, str]]:
    """What the run is doing now, and what its kernels are held against."""
    lines: list[tuple[str, str]] = []
    if found.pipeline is not None:
        age = age_text(found.pipeline, time.time())
        lines.append(("in flight", f"{stages_text(found.pipeline)}   ({age})"))
        if busy := busy_text(found.pipeline):
            lines.append(("GPU", busy))
    for case in dict.fromkeys((*found.times, *found.baselines)):
        lines.append(("times", f"{case}: {times_text(found, case)}"))
    lines += [("", line) for line in fault_lines(found.baseline_faults)]
    if found.environment is not None:
        lines.append(("ceilings", ceilings_line(found.environment, found.ceilings)))
    return lines
