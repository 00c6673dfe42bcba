"""What a launch is bound by, and how far it is from the speed of light.

A resource that is used for at least `NEAR` of its peak is what bounds a kernel; the busiest one counts. Where none is,
work waits: the kernel is bound by latency. (0.6 is also where Nsight Compute's own rule begins to speak of latency.)
Shares come from hardware counters where there are any, else from the model's terms ÷ the launch's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evo_kernel.fitness.profiling.counters import HardwareCounters
from evo_kernel.fitness.timing.ceilings import Ceilings

NEAR = 0.6
_LAUNCHES = 2.0  # a kernel that takes fewer empty launches than that is bound by being launched
_USES = {"dram": ("memory", "device memory"), "l2": ("memory", "L2"), "atomics": ("memory", "atomics"),
         "tensor": ("tensor", "tl.dot"), "issue": ("issue", "instructions")}  # fmt: skip
"""Terms of fitness/model.py that are a resource in use; the others are waiting."""
_WAITS = {"latency": "loads one after another", "exposed": "loads that nothing hides", "tail": "the last round of "
          "programs", "launch": "the launch itself"}  # fmt: skip


@dataclass(frozen=True)
class LaunchBound:
    """The verdict: "memory", "tensor", "issue", "latency" or "unknown", and what it rests on."""

    by: str
    evidence: str


def light_us(moved: float | None, flops: Mapping[str, float], ceilings: Ceilings) -> float:
    """Time of the bytes, each once, and of the operations of tl.dot by kind, at the ceilings: the longer one.

    fp8 and int8 run at twice the bf16 rate; kinds without a ceiling are held against the highest one, so that no share
    comes out too large.
    """
    rates = {
        "bf16": ceilings.bf16_flops, "fp16": ceilings.bf16_flops, "tf32": ceilings.tf32_flops,
        "tf32x3": ceilings.tf32_flops / 3, "fp32": ceilings.fp32_flops,
    }  # fmt: skip
    seconds = sum(amount / rates.get(kind, 2 * ceilings.bf16_flops) for kind, amount in flops.items())
    return max((moved or 0.0) / ceilings.copy_bytes_per_s, seconds) * 1e6


def bound(us: float, terms: Mapping[str, float], raw: Mapping[str, float], launch_us: float) -> LaunchBound:
    """The verdict on a launch of `us`: by counters (`raw`) if there are any, else by the model's terms in µs."""
    if us < _LAUNCHES * launch_us:
        return LaunchBound("latency", f"an empty launch takes {launch_us:.1f} of its {us:.1f} µs")
    found = HardwareCounters.of(raw)
    return _counted(found, terms) or _modeled(us, terms)


def _counted(found: HardwareCounters, terms: Mapping[str, float]) -> LaunchBound | None:
    """By hardware counters; None where there are none."""
    told = {
        "device memory": ("memory", found.dram), "L2": ("memory", found.l2),
        "L1 and shared memory": ("memory", found.l1), "tensor cores": ("tensor", found.tensor),
        "issue slots": ("issue", found.issue),
    }  # fmt: skip
    shares = {name: (kind, share) for name, (kind, share) in told.items() if share is not None}
    if not shares:
        return None
    name, (kind, share) = max(shares.items(), key=lambda one: one[1][1])
    if share >= NEAR:
        return LaunchBound(kind, f"{name} at {share:.0%} of peak")
    if found.sm is not None and found.sm >= NEAR:  # a pipe that is not counted by itself
        unseen = found.tensor is None and terms.get("tensor", 0.0) > terms.get("issue", 0.0)
        return LaunchBound(
            "tensor" if unseen else "issue", f"a pipe of the SMs at {found.sm:.0%} of peak ({name} {share:.0%})"
        )
    waits = f"; warps wait most for {found.stalls[0][0]}" if found.stalls else ""
    return LaunchBound("latency", f"nothing is near its peak ({name} {share:.0%}){waits}")


def _modeled(us: float, terms: Mapping[str, float]) -> LaunchBound:
    uses = {name: terms[name] for name in _USES if name in terms}
    if not uses or us <= 0:
        return LaunchBound("unknown", "nothing is counted")
    name = max(uses, key=lambda one: uses[one])
    share = uses[name] / us
    kind, said = _USES[name]
    if terms.get("latency", 0.0) > uses[name]:
        wait = f"{_WAITS['latency']} would take {terms['latency'] / us:.0%} of the time"
        return LaunchBound("latency", f"{wait}, {said} {share:.0%}, modeled")
    if share >= NEAR:
        return LaunchBound(kind, f"{said} would take {share:.0%} of the time, modeled")
    waits = {one: terms[one] for one in _WAITS if terms.get(one)}
    most = max(waits, key=lambda one: waits[one], default="")
    waiting = f"; waiting most for {_WAITS[most]}" if most else ""
    return LaunchBound("latency", f"no resource is busy for long ({said} {share:.0%} of the time, modeled){waiting}")
