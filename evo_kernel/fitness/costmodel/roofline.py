"""Roofline classification: which resource limits a launch, and its share of light.

The busiest resource limits a launch if it reaches at least `NEAR` of its peak. Otherwise the launch is limited by
latency. (Nsight Compute uses the same threshold of 0.6.) Utilisation comes from hardware counters if available, else
from the model's terms ÷ the launch's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evo_kernel.fitness.profiling.counters import HardwareCounters
from evo_kernel.fitness.timing.ceilings import Ceilings

NEAR = 0.6
_LAUNCHES = 2.0  # a kernel that takes less than so many empty launches is limited by launch time
_USES = {"dram": ("memory", "device memory"), "l2": ("memory", "L2"), "atomics": ("memory", "atomics"),
         "tensor": ("tensor", "tl.dot"), "issue": ("issue", "instructions")}  # fmt: skip
"""Terms of costmodel/model.py that are a resource in use; the others are waiting."""
_WAITS = {"latency": "loads one after another", "exposed": "loads that nothing hides", "tail": "the last round of "
          "programs", "launch": "the launch itself"}  # fmt: skip


@dataclass(frozen=True)
class LaunchBound:
    """The limiting resource ("memory", "tensor", "issue", "latency" or "unknown") and the evidence."""

    by: str
    evidence: str


def light_us(moved: float | None, flops: Mapping[str, float], ceilings: Ceilings) -> float:
    """The longer of the times at the ceilings for the bytes, each once, and for tl.dot by kind.

    fp8 and int8 run at twice the bf16 rate. Kinds without a ceiling use the highest one, so that no share is too large.
    """
    rates = {
        "bf16": ceilings.bf16_flops, "fp16": ceilings.bf16_flops, "tf32": ceilings.tf32_flops,
        "tf32x3": ceilings.tf32_flops / 3, "fp32": ceilings.fp32_flops,
    }  # fmt: skip
    seconds = sum(amount / rates.get(kind, 2 * ceilings.bf16_flops) for kind, amount in flops.items())
    return max((moved or 0.0) / ceilings.copy_bytes_per_s, seconds) * 1e6


def bound(us: float, terms: Mapping[str, float], raw: Mapping[str, float], launch_us: float) -> LaunchBound:
    """What limits a launch of `us`: by counters (`raw`) if there are any, else by the model's terms in µs."""
    if us < _LAUNCHES * launch_us:
        return LaunchBound("latency", f"an empty launch takes {launch_us:.1f} of its {us:.1f} µs")
    counters = HardwareCounters.of(raw)
    return _counted(counters, terms) or _modeled(us, terms)


def _counted(counters: HardwareCounters, terms: Mapping[str, float]) -> LaunchBound | None:
    """By hardware counters; None without them."""
    utilisation = {
        "device memory": ("memory", counters.dram), "L2": ("memory", counters.l2),
        "L1 and shared memory": ("memory", counters.l1), "tensor cores": ("tensor", counters.tensor),
        "issue slots": ("issue", counters.issue),
    }  # fmt: skip
    shares = {name: (kind, share) for name, (kind, share) in utilisation.items() if share is not None}
    if not shares:
        return None
    name, (kind, share) = max(shares.items(), key=lambda entry: entry[1][1])
    if share >= NEAR:
        return LaunchBound(kind, f"{name} at {share:.0%} of peak")
    if counters.sm is not None and counters.sm >= NEAR:  # a pipe without its own counter
        unseen = counters.tensor is None and terms.get("tensor", 0.0) > terms.get("issue", 0.0)
        return LaunchBound(
            "tensor" if unseen else "issue", f"a pipe of the SMs at {counters.sm:.0%} of peak ({name} {share:.0%})"
        )
    waits = f"; warps wait most for {counters.stalls[0][0]}" if counters.stalls else ""
    return LaunchBound("latency", f"nothing is near its peak ({name} {share:.0%}){waits}")


def _modeled(us: float, terms: Mapping[str, float]) -> LaunchBound:
    uses = {name: terms[name] for name in _USES if name in terms}
    if not uses or us <= 0:
        return LaunchBound("unknown", "nothing is counted")
    name = max(uses, key=lambda term: uses[term])
    share = uses[name] / us
    kind, use = _USES[name]
    if terms.get("latency", 0.0) > uses[name]:
        wait = f"{_WAITS['latency']} would take {terms['latency'] / us:.0%} of the time"
        return LaunchBound("latency", f"{wait}, {use} {share:.0%}, modeled")
    if share >= NEAR:
        return LaunchBound(kind, f"{use} would take {share:.0%} of the time, modeled")
    waits = {term: terms[term] for term in _WAITS if terms.get(term)}
    most = max(waits, key=lambda term: waits[term], default="")
    waiting = f"; waiting most for {_WAITS[most]}" if most else ""
    return LaunchBound("latency", f"no resource is busy for long ({use} {share:.0%} of the time, modeled){waiting}")
