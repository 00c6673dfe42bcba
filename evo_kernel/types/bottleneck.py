"""What takes a kernel's time: the one sentence of `verify`, `show`, summaries and `profile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evo_kernel.types.evaluations import Measurement

NEAR = 0.6
"""Share of the time from which a resource in use bounds a kernel."""
LAUNCHES = 2.0
"""A kernel that takes less than so many empty launches is limited by launch time."""
_KINDS = {"dram": "memory", "l2": "memory", "atomics": "memory", "tensor": "tensor", "issue": "issue"}
"""Terms of the time model that are a resource in use; the others are waiting."""
TERMS = {
    "dram": "memory traffic", "l2": "traffic of the L2", "tensor": "matrix products", "issue": "instructions",
    "atomics": "atomics", "latency": "loads one after another", "exposed": "loads that nothing hides",
    "tail": "the last round of programs", "busiest": "the busiest program", "launch": "launches",
}  # fmt: skip
"""Terms of the time model (fitness/costmodel/model.py), as people read them."""


@dataclass(frozen=True)
class Bottleneck:
    """The limiting resource ("memory", "tensor", "issue", "latency" or "unknown") and the evidence."""

    by: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.by}: {self.evidence}"


def modeled_bottleneck(us: float, terms: Mapping[str, float]) -> Bottleneck:
    """By the terms of the time model, in µs, of a launch or a plan that takes `us`."""
    uses = {name: terms[name] for name in _KINDS if terms.get(name, 0.0) > 0}
    if not uses or us <= 0:
        return Bottleneck("unknown", "nothing is counted")
    most = max(uses, key=lambda name: uses[name])
    waits = terms.get("latency", 0.0) > uses[most] or us < LAUNCHES * terms.get("launch", 0.0)
    known = {name: terms[name] for name in TERMS if terms.get(name, 0.0) > 0}
    large = sorted((n for n in known if known[n] >= max(known.values()) / 2), key=lambda n: -known[n])
    alone = (f"{TERMS[name]} ({known[name]:.1f} µs alone, {known[name] / us:.0%})" for name in large)
    told = f"{' and '.join(alone)} of {us:.1f} µs, modeled"
    if waits:
        return Bottleneck("latency", told)
    if uses[most] >= NEAR * us:
        return Bottleneck(_KINDS[most], told)
    longest = max((name for name in known if name not in _KINDS), key=lambda name: known[name], default="")
    waiting = f"; waiting most for {TERMS[longest]}" if longest else ""
    return Bottleneck("latency", f"no resource is busy for {NEAR:.0%} of the time; {told}{waiting}")


def bottleneck_text(measured: Measurement) -> str:
    """Of a plan: its modeled terms, launches, and what these hand on through memory."""
    told = []
    if not measured.n and any(name in measured.details for name in _KINDS):
        told.append(str(modeled_bottleneck(measured.median_us, measured.details)))
    if plan := measured.features:
        launches = plan.launches + plan.aten_nodes
        told.append("1 launch" if launches == 1 else f"{launches} launches")
        if plan.scratch_bytes:
            told.append(f"{plan.scratch_bytes / 1e6:,.1f} MB of intermediate results are written and read again")
        elif launches > 1:
            told.append("no intermediate buffers")
    return "; ".join(told) or "not known"
