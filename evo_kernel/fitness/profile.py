"""What a plan's kernels do with the GPU, as one text table: for agents, who read it in a prompt, and for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evo_kernel.fitness.features import data_path, schedule, tensor_core
from evo_kernel.fitness.plan import CompiledPlan, Launch
from evo_kernel.fitness.targets import Target, occupancy
from evo_kernel.types import Measurement

MIX = ("ld.global", "st.global", "cp.async", "tma.load", "tma.store", "atomic", "wgmma", "mma", "fma", "fadd", "fmul",
       "mufu", "minmax", "convert", "ld.shared", "st.shared", "shuffle", "barrier", "branch", "spill", "move",
       "constant", "int", "int.uniform")  # fmt: skip
"""Instruction classes of fitness/machine_code.py; the largest shares are shown."""
SHOWN = 5


@dataclass(frozen=True)
class LaunchCost:
    """One kernel launch of a plan: its time in µs, and what it moves and computes where that is known."""

    us: float
    bytes: float | None = None  # of device memory, each line once
    flops: float | None = None  # of tl.dot
    terms: Mapping[str, float] = field(default_factory=dict)  # µs by cause, where the time is modeled
    counters: Mapping[str, float] = field(default_factory=dict)  # the profiler's, by its own names


@dataclass(frozen=True)
class KernelProfile:
    """One launch with all that its code says."""

    name: str
    grid: tuple[int, int, int]
    num_warps: int
    us: float
    share: float  # of the time of all launches
    gb_per_s: float | None
    bandwidth_share: float | None  # of what a copy reaches
    tflop_per_s: float | None
    registers: int
    spill_bytes: int
    shared_bytes: int
    blocks_per_sm: int
    occupancy: float  # resident warps ÷ what an SM holds
    limiter: str
    waves: float  # grid ÷ blocks that are resident at once
    tensor_core: str
    data_path: str
    schedule: str
    mix: Mapping[str, float]  # shares of the static instructions
    terms: Mapping[str, float]
    counters: Mapping[str, float]

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "mix": dict(self.mix), "terms": dict(self.terms), "counters": dict(self.counters)}


def alone(compiled: CompiledPlan, position: int) -> CompiledPlan:
    """The plan with its kernel launch number `position` as its only node: what is timed to tell launches apart.

    What earlier launches would have written is poison then: it changes no time that does not depend on data.
    """
    launch = compiled.plan.launches[position]
    return compiled.model_copy(update={"plan": compiled.plan.model_copy(update={"nodes": (launch,)})})


def cost_of(found: Measurement, target: Target, kind: str) -> LaunchCost:
    """The cost of a launch that was timed alone, from its measurement in an environment of this kind."""
    if kind == "measured":
        return LaunchCost(found.median_us)
    moved = found.details.get("dram", 0.0) * 1e-6 * target.copy_bytes_per_s
    return LaunchCost(found.median_us, bytes=moved or None, terms=dict(found.details))


def profile(compiled: CompiledPlan, costs: Sequence[LaunchCost], target: Target) -> list[KernelProfile]:
    """One profile a kernel launch, in order. `costs` belong to the launches."""
    total = math.fsum(cost.us for cost in costs) or 1.0
    return [
        _one(compiled, launch, cost, total, target) for launch, cost in zip(compiled.plan.launches, costs, strict=True)
    ]


def _one(compiled: CompiledPlan, launch: Launch, cost: LaunchCost, total_us: float, target: Target) -> KernelProfile:
    kernel, binary = compiled.plan.kernels[launch.kernel], compiled.binaries[launch.kernel]
    fits = occupancy(target, binary.registers, binary.shared_bytes, binary.num_warps)
    rate = cost.bytes / cost.us * 1e6 if cost.bytes is not None else None
    every = max(binary.instructions.get("all", 0), 1)
    mix = {name: binary.instructions.get(name, 0) / every for name in MIX}
    return KernelProfile(
        name=kernel.name, grid=launch.grid, num_warps=binary.num_warps, us=cost.us, share=cost.us / total_us,
        gb_per_s=rate / 1e9 if rate is not None else None,
        bandwidth_share=rate / target.copy_bytes_per_s if rate is not None else None,
        tflop_per_s=cost.flops / cost.us / 1e6 if cost.flops else None,
        registers=binary.registers, spill_bytes=binary.spill_bytes, shared_bytes=binary.shared_bytes,
        blocks_per_sm=fits.blocks_per_sm, occupancy=fits.warps_per_sm / target.warps_per_sm, limiter=fits.limiter,
        waves=math.prod(launch.grid) / max(1, fits.blocks_per_sm * target.sm_count),
        tensor_core=tensor_core(binary), data_path=data_path(binary),
        schedule=schedule(kernel, binary, launch, target),
        mix={name: share for name, share in sorted(mix.items(), key=lambda item: -item[1])[:SHOWN] if share > 0},
        terms=cost.terms, counters=cost.counters,
    )  # fmt: skip


def as_text(profiles: Sequence[KernelProfile], label: str) -> str:
    """The table, one paragraph a launch; `label` says whether the times are measured or modeled, and where."""
    return "\n".join([f"times are {label}", *(line for one in profiles for line in _lines(one))])


def _lines(one: KernelProfile) -> list[str]:
    tensor = one.tensor_core if one.tensor_core != "none" else "no"
    grid = " x ".join(str(size) for size in one.grid if size > 1) or "1"
    lines = [
        f"{one.name}  {one.us:.2f} µs, {one.share:.0%} of the kernels' time",
        f"  launch       grid {grid}, {one.num_warps} warps, {one.waves:.2f} waves; "
        f"{tensor} tensor cores, data by {one.data_path}, {one.schedule}",
        f"  resources    {one.registers} registers, {one.spill_bytes} B spilled, {one.shared_bytes} B shared memory",
        f"  occupancy    {one.occupancy:.0%}: {one.blocks_per_sm} blocks an SM, limited by {one.limiter}",
    ]
    rates = []
    if one.gb_per_s is not None and one.bandwidth_share is not None:
        rates.append(f"{one.gb_per_s:.0f} GB/s, {one.bandwidth_share:.0%} of a copy")
    if one.tflop_per_s is not None:
        rates.append(f"{one.tflop_per_s:.1f} TFLOP/s in tl.dot")
    if rates:
        lines.append(f"  rates        {'; '.join(rates)}")
    mix = ", ".join(f"{name} {share:.0%}" for name, share in one.mix.items())
    lines.append(f"  instructions {mix}")
    if one.terms:
        terms = sorted(one.terms.items(), key=lambda item: -item[1])
        lines.append("  modeled µs   " + ", ".join(f"{name} {us:.1f}" for name, us in terms if us >= 0.05))
    lines += [f"  {name} = {value:g}" for name, value in one.counters.items()]
    return lines
