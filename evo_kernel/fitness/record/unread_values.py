"""Which values of inputs a recording follows from: those that host code did not read may be others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import RecordCase, Recorder, RecordFault
from evo_kernel.types import Source


def without_unread(
    recorder: Recorder, source: Source, cases: Sequence[RecordCase], plans: Mapping[str, CompiledPlan | RecordFault]
) -> list[RecordCase]:
    """The cases, without the values of inputs where the recording is the same if host code may not know them."""
    blind = [RecordCase(f"{case.name}, blind", tuple(_unknown(spec) for spec in case.inputs)) for case in cases]
    asked = [other for case, other in zip(cases, blind, strict=True) if case.inputs != other.inputs]
    if not asked:
        return list(cases)
    again = recorder.record(source, asked, ((),))
    return [
        RecordCase(case.name, other.inputs) if _same(plans[case.name], again.plans.get((other.name, ()))) else case
        for case, other in zip(cases, blind, strict=True)
    ]


def _unknown(spec: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in spec.items() if name != "host"}


def _same(plan: CompiledPlan | RecordFault, other: CompiledPlan | RecordFault | None) -> bool:
    return isinstance(plan, CompiledPlan) and isinstance(other, CompiledPlan) and plan.hash == other.hash
