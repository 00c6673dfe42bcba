"""Finds host-known input values that do not affect a recording, so that exported kernels accept other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import RecordCase, Recorder, RecordFault
from evo_kernel.types import Source


def without_unread(
    recorder: Recorder, source: Source, cases: Sequence[RecordCase], plans: Mapping[str, CompiledPlan | RecordFault]
) -> list[RecordCase]:
    """The cases, without host-known values if recording without them gives the same plan."""
    hidden = [RecordCase(f"{case.name}, blind", tuple(_unknown(spec) for spec in case.inputs)) for case in cases]
    differing = [other for case, other in zip(cases, hidden, strict=True) if case.inputs != other.inputs]
    if not differing:
        return list(cases)
    recording = recorder.record(source, differing, ((),))
    return [
        RecordCase(case.name, other.inputs) if _same(plans[case.name], recording.plans.get((other.name, ()))) else case
        for case, other in zip(cases, hidden, strict=True)
    ]


def _unknown(spec: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in spec.items() if name != "host"}


def _same(plan: CompiledPlan | RecordFault, other: CompiledPlan | RecordFault | None) -> bool:
    return isinstance(plan, CompiledPlan) and isinstance(other, CompiledPlan) and plan.hash == other.hash
