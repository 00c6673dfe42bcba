"""Checks every autotune configuration of a source that Triton could choose; evidence names them.

A search scores and exports one configuration, so it need not know of others. Whoever verifies a file wants to know of
all that Triton may choose: the fastest depends on the GPU. Only the first that fits is timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evo_kernel.fitness.evaluation_context import EvaluationContext, PartialEvaluation
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.record.recorder import Configurations, Recording
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.types import CaseKind, Knobs, Status

_AT_ONCE = 16
"""Settings that are recorded and compiled together."""


def check_others(
    grader: Grader, context: EvaluationContext, recording: Recording, own: PartialEvaluation
) -> PartialEvaluation:
    """`own`, with a note on the configurations of its autotuned kernels; or the first that is wrong.

    One that does not fit the GPU is passed over, as Triton does. Where launches prune it, the source's own is in its
    place; one that no check case takes is checked on search cases. Raises CutShort.
    """
    checks = {case.name for case in grader.cases(CaseKind.CHECK)}
    tuned = {kernel: found for kernel, found in recording.configs.items() if len(found.texts) > 1}
    others = [(kernel, n) for kernel, found in tuned.items() for n in range(len(found.texts)) if n != found.own]
    unfit: dict[str, list[int]] = {kernel: [] for kernel in tuned}
    for first in range(0, len(others), _AT_ONCE):
        batch = others[first : first + _AT_ONCE]
        settings: list[Knobs] = [((f"{kernel}.config", n),) for kernel, n in batch]
        together = grader.record(context.source, (CaseKind.CHECK,), settings)
        for (kernel, n), setting in zip(batch, settings, strict=True):
            pruned = {case for case, numbers in tuned[kernel].pruned.items() if n in numbers}
            timed = () if checks & tuned[kernel].pruned.keys() - pruned else (CaseKind.SEARCH,)
            recorded = grader.record(context.source, (CaseKind.CHECK, *timed), [setting]) if timed else together
            plans = {
                place: recording.plans.get((place[0], ()), plan) if place[0] in pruned else plan
                for place, plan in recorded.of(setting).plans.items()
            }
            part = replace(recorded, plans=plans)
            if part.fault is not None and part.fault.misfit == kernel:
                unfit[kernel].append(n)
                continue
            checked = grader.grade(context, part, setting, timed)
            if not checked.ended.passed:
                place = f"with autotune configuration {n} of {kernel} ({tuned[kernel].texts[n]}): "
                return own.then(replace(checked, ended=replace(checked.ended, reason=place + checked.ended.reason)))
            own = own.beside([checked])
    return replace(own, ended=Checked(Status.PASSED, _note(tuned, unfit)))


def _note(tuned: Mapping[str, Configurations], unfit: Mapping[str, list[int]]) -> str:
    notes = []
    for kernel, found in tuned.items():
        note = (
            f"{len(found.texts) - len(unfit[kernel])} of {len(found.texts)} autotune configurations of {kernel} checked"
        )
        missing = f", {', '.join(map(str, unfit[kernel]))} do not fit the GPU" if unfit[kernel] else ""
        notes.append(f"{note}{missing}; times are with {found.own} ({found.texts[found.own]})")
    return "; ".join(notes)
