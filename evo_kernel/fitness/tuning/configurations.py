"""Checks every autotune configuration of a source that Triton could choose; evidence names them.

A search scores and exports one configuration, so it need not know of others. Whoever verifies a file wants to know of
all that Triton may choose: the fastest depends on the GPU. Only the first that fits is timed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from evo_kernel.fitness.evaluation_context import EvaluationContext, PartialEvaluation
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Configurations, Recording
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.types import CaseKind, Knobs, Purpose, Status

_AT_ONCE = 16
"""Settings that are recorded and compiled together."""
_THOROUGH_S = 8.0
"""Seconds, about, for checks of other configurations that a search does without: published kernels have up to 100."""


def check_others(
    grader: Grader, context: EvaluationContext, recording: Recording, own: PartialEvaluation
) -> PartialEvaluation:
    """`own`, with a note on the configurations of its autotuned kernels; or the first that is wrong.

    One that does not fit the GPU is passed over, as Triton does. Where launches prune it, the source's own is in its
    place. Each is checked as in a search; random ones, within some seconds, as the source's own is, and on search cases
    too, as is one that no check case takes. Raises CutShort.
    """
    checks = {case.name for case in grader.cases(CaseKind.CHECK)}
    search = {case.name: case for case in grader.cases(CaseKind.SEARCH)}
    tuned = {kernel: found for kernel, found in recording.configs.items() if len(found.texts) > 1}
    others = [(kernel, n) for kernel, found in tuned.items() for n in range(len(found.texts)) if n != found.own]
    random.SystemRandom().shuffle(others)
    unfit: dict[str, list[int]] = {kernel: [] for kernel in tuned}
    at_size, seconds = Counter[str](), 0.0
    for first in range(0, len(others), _AT_ONCE):
        batch = others[first : first + _AT_ONCE]
        settings: list[Knobs] = [((f"{kernel}.config", n),) for kernel, n in batch]
        together = grader.record(context.source, (CaseKind.CHECK,), settings)
        for (kernel, n), setting in zip(batch, settings, strict=True):
            began, is_thorough = time.monotonic(), seconds < _THOROUGH_S
            pruned = {case for case, numbers in tuned[kernel].pruned.items() if n in numbers}
            is_sized = is_thorough or not checks & tuned[kernel].pruned.keys() - pruned
            kinds = (CaseKind.CHECK, CaseKind.SEARCH) if is_sized else (CaseKind.CHECK,)
            recorded = grader.record(context.source, kinds, [setting]) if is_sized else together
            plans = {
                place: recording.plans.get((place[0], ()), plan) if place[0] in pruned else plan
                for place, plan in recorded.of(setting).plans.items()
            }
            part = replace(recorded, plans=plans)
            if part.fault is not None and part.fault.misfit == kernel:
                unfit[kernel].append(n)
                continue
            as_found = replace(context, purpose=Purpose.SCORE)
            checked = grader.grade(context if is_thorough else as_found, part, setting)
            if checked.ended.passed:
                sized = [(search[case], plan) for (case, _), plan in plans.items() if case in search.keys() - pruned]
                compiled = [(case, plan) for case, plan in sized if isinstance(plan, CompiledPlan)]
                checked = checked.then(grader.check_at_size(as_found, compiled, "nominal"))
            if not checked.ended.passed:
                place = f"with autotune configuration {n} of {kernel} ({tuned[kernel].texts[n]}): "
                return own.then(replace(checked, ended=replace(checked.ended, reason=place + checked.ended.reason)))
            own = own.beside([checked])
            at_size[kernel] += is_sized
            seconds += time.monotonic() - began
    return replace(own, ended=Checked(Status.PASSED, _note(tuned, unfit, at_size)))


def _note(tuned: Mapping[str, Configurations], unfit: Mapping[str, list[int]], at_size: Mapping[str, int]) -> str:
    notes = []
    for kernel, found in tuned.items():
        count = len(found.texts) - len(unfit[kernel])
        sized = at_size[kernel] + 1
        note = f"{count} of {len(found.texts)} autotune configurations of {kernel} checked"
        if sized < count:
            note += f", {sized} of them at timed sizes"
        missing = f", {', '.join(map(str, unfit[kernel]))} do not fit the GPU" if unfit[kernel] else ""
        notes.append(f"{note}{missing}; times are with {found.own} ({found.texts[found.own]})")
    return "; ".join(notes)
