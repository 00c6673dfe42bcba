"""Texts that the live view, `status`, `show` and summaries share. Imports nothing slow."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

from evo_kernel.types import Evaluation, Measurement, PipelineState

STALE_S = 20.0
"""A process says what it is doing every few seconds; one that has been silent for longer hangs, or was stopped."""


def stages_text(state: PipelineState) -> str:
    """How many attempts are at each stage, in columns that stay where they are while the numbers change."""
    return "   ".join(f"{count:>2} {stage}" for stage, count in state.stages.items())


def busy_text(state: PipelineState) -> str:
    """The GPUs' busy shares; empty without a GPU."""
    if not state.busy_recent:
        return ""
    recent, session = _mean(state.busy_recent), _mean(state.busy_session)
    each = " (" + " ".join(f"{share:.0%}" for share in state.busy_recent) + ")" if len(state.busy_recent) > 1 else ""
    return f"busy {recent:>4.0%} of the last {state.recent_s:.0f} s{each}, {session:.0%} of the session"


def state_text(state: PipelineState) -> str:
    """Both in one sentence: for a log."""
    stages = ", ".join(f"{count} {stage}" for stage, count in state.stages.items() if count) or "nothing under way"
    busy = busy_text(state)
    return f"{stages}; GPU {' '.join(busy.split())}" if busy else stages


def age_text(state: PipelineState, now: float) -> str:
    """How old a state is; `now` in Unix time. Says so when it is too old to be believed."""
    age_s = state.age_s(now)
    stale = "; STALE: the process hangs, or was stopped" if age_s > STALE_S else ""
    return f"{age_s:.0f} s ago{stale}"


def denominator(baselines_us: Mapping[str, float]) -> str:
    """The baseline that a speed-up is held against: the fastest. Empty without any."""
    return min(baselines_us, key=lambda name: baselines_us[name], default="")


def score_text(evaluation: Evaluation) -> str:
    """The score, with what it is against; the time where there is no score yet."""
    if evaluation.score is not None:
        return f"{evaluation.score:.3f}x {against(m.baselines_us for m in evaluation.measurements)}".rstrip()
    return _mean_us(evaluation) if evaluation.measurements else "no score"


def progress_text(evaluation: Evaluation) -> str:
    """The time, which every evaluation that passed has, and the score where there is one: for lines of one unit."""
    return _mean_us(evaluation) + (f", {score_text(evaluation)}" if evaluation.score is not None else "")


def _mean_us(evaluation: Evaluation) -> str:
    """Geometric mean over the cases."""
    return f"{math.exp(evaluation.log_us):.1f} µs"


def held_texts(measured: Measurement, digits: int) -> tuple[str, str, str]:
    """The floor in µs, the speed-up and the share of light; a dash for what is not known."""
    floor_us, light = measured.floor_us, measured.light_share
    return (
        dashed(floor_us, f"{{:.{digits}f}}"),
        f"{measured.speedup:.2f}x" if measured.baselines_us else "-",
        dashed(light, "{:.0%}"),
    )


def against(baselines_us: Iterable[Mapping[str, float]]) -> str:
    """What speed-ups over cases are against: the name of the denominator, where it is one for all."""
    names = {denominator(times) for times in baselines_us}
    return "the fastest baselines" if len(names) > 1 else "".join(names)


def fault_lines(faults: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One line for each baseline that could not be timed, from reasons by case and name; cases alike are joined."""
    cases: dict[tuple[str, str], list[str]] = {}
    for case, reasons in faults.items():
        for name, reason in reasons.items():
            cases.setdefault((name, reason), []).append(case)
    return [
        f"baseline not timed: {name} on {', '.join(where)}: {reason_text(reason)}"
        for (name, reason), where in cases.items()
    ]


def reason_text(reason: str, longest: int = 200) -> str:
    """A reason as one line: libraries answer with whole pages."""
    line = " ".join(reason.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def dashed(value: float | None, form: str) -> str:
    """A number in a format such as `{:.2f}x`; a dash where it is not known."""
    return "-" if value is None else form.format(value)


def counts_text(counts: Mapping[str, int]) -> str:
    """How many there are of each, by name; empty without any."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)


def source_diff(before: str, after: str, parent: int | None, number: int) -> str:
    """What changed between the sources of two candidates, with three lines of context; `parent`: None where there is
    none, and `before` is empty."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"candidate {parent}", f"candidate {number}", lineterm="", n=3
    )
    return "\n".join(lines)
