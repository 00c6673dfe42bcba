"""What a plan's kernels do with the GPU, as one text table: for agents, who read it in a prompt, and for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evo_kernel.fitness.costmodel.features import data_path, schedule, tensor_core
from evo_kernel.fitness.costmodel.model import modeled_time
from evo_kernel.fitness.costmodel.roofline import bound, light_us
from evo_kernel.fitness.costmodel.targets import Target, occupancy
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Launch
from evo_kernel.fitness.profiling.counters import HardwareCounters
from evo_kernel.fitness.timing.ceilings import Ceilings

MIX = ("ld.global", "st.global", "cp.async", "tma.load", "tma.store", "atomic", "wgmma", "mma", "fma", "fadd", "fmul",
       "mufu", "minmax", "convert", "ld.shared", "st.shared", "shuffle", "barrier", "branch", "spill", "move",
       "constant", "int", "int.uniform")  # fmt: skip
"""Instruction classes of fitness/instructions.py; the largest shares are shown."""
SHOWN = 5


@dataclass(frozen=True)
class LaunchCost:
    """One kernel launch of a plan: its time in µs, and what it moves and computes where that is known."""

    us: float
    bytes: float | None = None  # of device memory, each line once, counted in executed IR
    flops: Mapping[str, float] = field(default_factory=dict)  # of tl.dot by operand kind, counted there too
    terms: Mapping[str, float] = field(default_factory=dict)  # µs by cause, as the model sees it
    counters: Mapping[str, float] = field(default_factory=dict)  # hardware counters by Nsight Compute's names


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
    light_share: float | None  # of the speed of light: the time of bytes and tl.dot at the ceilings ÷ the launch's
    bound_by: str  # memory, tensor, issue, latency; unknown
    evidence: str
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


def costs_of(
    compiled: CompiledPlan,
    times_us: Sequence[float],
    traffic: Sequence[LaunchTraffic] | None,
    counters: Sequence[Mapping[str, float]],
    target: Target,
) -> list[LaunchCost]:
    """Costs of the launches of a plan, in order, from what was found out about each. `traffic` is None if unknown."""
    if traffic is None:
        return [LaunchCost(us, counters=raw) for us, raw in zip(times_us, counters, strict=True)]
    modeled = modeled_time(compiled, traffic, target).launches
    return [
        LaunchCost(
            us,
            bytes=seen.grid_load_bytes + seen.grid_store_bytes,
            flops={kind: seen.programs * amount for kind, amount in seen.flops.items()},
            terms=model.terms,
            counters=raw,
        )
        for us, seen, model, raw in zip(times_us, traffic, modeled, counters, strict=True)
    ]


def profile(
    compiled: CompiledPlan, costs: Sequence[LaunchCost], target: Target, ceilings: Ceilings
) -> list[KernelProfile]:
    """One profile a kernel launch, in order. `costs` belong to the launches."""
    total = math.fsum(cost.us for cost in costs) or 1.0
    return [
        _one(compiled, launch, cost, total, target, ceilings)
        for launch, cost in zip(compiled.plan.launches, costs, strict=True)
    ]


def _one(
    compiled: CompiledPlan, launch: Launch, cost: LaunchCost, total_us: float, target: Target, ceilings: Ceilings
) -> KernelProfile:
    kernel, binary = compiled.plan.kernels[launch.kernel], compiled.binaries[launch.kernel]
    fits = occupancy(target, binary.registers, binary.block_shared_bytes, binary.num_warps)
    rate = cost.bytes / cost.us * 1e6 if cost.bytes is not None else None
    flops = math.fsum(cost.flops.values())
    every = max(binary.instructions.get("all", 0), 1)
    mix = {name: binary.instructions.get(name, 0) / every for name in MIX}
    verdict = bound(cost.us, cost.terms, cost.counters, ceilings.launch_us)
    return KernelProfile(
        name=kernel.name, grid=launch.grid, num_warps=binary.num_warps, us=cost.us, share=cost.us / total_us,
        gb_per_s=rate / 1e9 if rate is not None else None,
        bandwidth_share=rate / ceilings.copy_bytes_per_s if rate is not None else None,
        tflop_per_s=flops / cost.us / 1e6 if flops else None,
        light_share=light_us(cost.bytes, cost.flops, ceilings) / cost.us if cost.bytes is not None else None,
        bound_by=verdict.by, evidence=verdict.evidence,
        registers=binary.registers, spill_bytes=binary.spill_bytes, shared_bytes=binary.block_shared_bytes,
        blocks_per_sm=fits.blocks_per_sm, occupancy=fits.warps_per_sm / target.warps_per_sm, limiter=fits.limiter,
        waves=math.prod(launch.grid) * binary.num_ctas / max(1, fits.blocks_per_sm * target.sm_count),
        tensor_core=tensor_core(binary), data_path=data_path(binary),
        schedule=schedule(binary, launch, target),
        mix={name: share for name, share in sorted(mix.items(), key=lambda item: -item[1])[:SHOWN] if share > 0},
        terms=cost.terms, counters=cost.counters,
    )  # fmt: skip


@dataclass(frozen=True)
class CaseProfile:
    """What the launches of one case do, and what could not be found out, each in a sentence."""

    kernels: tuple[KernelProfile, ...]
    notes: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        return {"kernels": [one.as_data() for one in self.kernels], "notes": list(self.notes)}

    def as_text(self, label: str) -> str:
        """The table, one paragraph a launch; `label` says whether the times are measured or modeled, and where."""
        counted = any(one.gb_per_s is not None for one in self.kernels)
        said = "; bytes and tl.dot are counted by executing the IR, each line once, not measured" if counted else ""
        return "\n".join(
            [f"times are {label}{said}", *self.notes, *(line for one in self.kernels for line in _lines(one))]
        )


def _lines(one: KernelProfile) -> list[str]:
    tensor = one.tensor_core if one.tensor_core != "none" else "no"
    grid = " x ".join(str(size) for size in one.grid if size > 1) or "1"
    counters = HardwareCounters.of(one.counters)
    achieved = f"; {counters.occupancy:.0%} achieved" if counters.occupancy is not None else ""
    lines = [
        f"{one.name}  {one.us:.2f} µs, {one.share:.0%} of the kernels' time",
        f"  bound by     {one.bound_by}: {one.evidence}",
        f"  launch       grid {grid}, {one.num_warps} warps, {one.waves:.2f} waves; "
        f"{tensor} tensor cores, data by {one.data_path}, {one.schedule}",
        f"  resources    {one.registers} registers, {one.spill_bytes} B spilled, {one.shared_bytes} B shared memory",
        f"  occupancy    {one.occupancy:.0%}: {one.blocks_per_sm} blocks an SM, limited by {one.limiter}{achieved}",
    ]
    rates = []
    if one.gb_per_s is not None and one.bandwidth_share is not None:
        rates.append(f"{one.gb_per_s:.0f} GB/s, {one.bandwidth_share:.0%} of a copy")
    if one.tflop_per_s is not None:
        rates.append(f"{one.tflop_per_s:.1f} TFLOP/s in tl.dot")
    if one.light_share is not None:
        rates.append(f"{one.light_share:.0%} of the speed of light")
    if rates:
        lines.append(f"  rates        {'; '.join(rates)}")
    lines += counters.lines(one.us)
    mix = ", ".join(f"{name} {share:.0%}" for name, share in one.mix.items())
    lines.append(f"  instructions {mix}")
    if one.terms:
        terms = sorted(one.terms.items(), key=lambda item: -item[1])
        lines.append("  modeled µs   " + ", ".join(f"{name} {us:.1f}" for name, us in terms if us >= 0.05))
    return lines
