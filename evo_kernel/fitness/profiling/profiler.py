"""Profiles plans: times each launch alone, counts its bytes, reads hardware counters, and formats what limits it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.fitness.costmodel.features import data_path, schedule, tensor_core
from evo_kernel.fitness.costmodel.model import modeled_time
from evo_kernel.fitness.costmodel.targets import Target, occupancy, target_for
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic
from evo_kernel.fitness.plan.launch_plan import (
    MAX_TABLE_BYTES,
    CompiledPlan,
    Constant,
    Fill,
    Launch,
)
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart, HardwareCounters
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.timing.ceilings import Ceilings
from evo_kernel.tasks.task import Task
from evo_kernel.types import Measurement, escaped
from evo_kernel.types.bottleneck import LAUNCHES, NEAR, Bottleneck, bottleneck_text, modeled_bottleneck

MIX = ("ld.global", "st.global", "cp.async", "tma.load", "tma.store", "atomic", "wgmma", "mma", "fma", "fadd", "fmul",
       "mufu", "bits", "minmax", "convert", "ld.shared", "st.shared", "shuffle", "barrier", "branch", "spill", "move",
       "constant", "int", "int.uniform")  # fmt: skip
"""Instruction classes of compile/instructions.py; the largest shares are shown."""
SHOWN = 5
LIGHT = 2.0
"""Share of the roofline from which on a launch is faster than its own bytes and tl.dot allow: writes that stay in the
L2 cost less than the copy bandwidth says, but not half."""
TOGETHER = 0.6
"""Launches that take less of the plan's time than this, each timed alone, skip work."""


@dataclass(frozen=True)
class LaunchCost:
    """One launch: its time in µs and, if known, its traffic and operations."""

    us: float
    bytes: float | None = None  # of device memory, each line once, counted in executed IR
    flops: Mapping[str, float] = field(default_factory=dict)  # of tl.dot by operand kind, counted in executed IR
    terms: Mapping[str, float] = field(default_factory=dict)  # µs by cause, from the time model
    counters: Mapping[str, float] = field(default_factory=dict)  # hardware counters by Nsight Compute's names
    clock_mhz: float | None = None  # of the SMs while it was timed


@dataclass(frozen=True)
class KernelProfile:
    """One launch with the properties of its code."""

    name: str
    grid: tuple[int, int, int]
    num_warps: int
    us: float
    share: float  # of the time of all launches
    gb_per_s: float | None
    bandwidth_share: float | None  # of the measured copy bandwidth
    tflop_per_s: float | None
    roofline_share: float | None  # least time for its own bytes and tl.dot at the ceilings ÷ its time
    bound_by: str  # memory, tensor, issue, latency; unknown
    evidence: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    blocks_per_sm: int
    occupancy: float  # resident warps ÷ the most that an SM holds
    limiter: str
    waves: float  # grid ÷ blocks resident at once
    tensor_core: str
    data_path: str
    schedule: str
    mix: Mapping[str, float]  # shares of the static instructions
    terms: Mapping[str, float]
    counters: Mapping[str, float]
    clock_mhz: float | None = None  # of the SMs while it was timed; None where times are modeled

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "mix": dict(self.mix), "terms": dict(self.terms), "counters": dict(self.counters)}


def alone(compiled: CompiledPlan, position: int) -> CompiledPlan:
    """The plan with launch number `position` as its only launch, to time launches separately.

    Small tables and fills (tiles, counters) that it may read stay, in its time too. What earlier launches would have
    written is poison; that only changes times that depend on data. The plan has no outputs: they would depend on it.
    """
    nodes = compiled.plan.nodes
    place = [number for number, node in enumerate(nodes) if isinstance(node, Launch)][position]
    launch = compiled.plan.launches[position]
    given = compiled.plan.reached(launch)
    before = [
        node for node in nodes[:place]
        if isinstance(node, (Constant, Fill)) and node.view.buffer in given
        and node.view.elements * node.view.item_bytes <= MAX_TABLE_BYTES
    ]  # fmt: skip
    plan = compiled.plan.model_copy(update={"nodes": (*before, launch), "outputs": ()})
    return compiled.model_copy(update={"plan": plan})


def costs_of(
    compiled: CompiledPlan,
    times_us: Sequence[float],
    traffic: Sequence[LaunchTraffic] | None,
    counters: Sequence[Mapping[str, float]],
    target: Target,
) -> list[LaunchCost]:
    """Costs of a plan's launches, in order. `traffic` is None if unknown."""
    if traffic is None:
        return [LaunchCost(us, counters=raw) for us, raw in zip(times_us, counters, strict=True)]
    modeled = modeled_time(compiled, traffic, target).launches
    return [
        LaunchCost(
            us,
            bytes=launch_traffic.grid_load_bytes + launch_traffic.grid_store_bytes,
            flops={kind: launch_traffic.programs * amount for kind, amount in launch_traffic.flops.items()},
            terms=model.terms,
            counters=raw,
        )
        for us, launch_traffic, model, raw in zip(times_us, traffic, modeled, counters, strict=True)
    ]


def profile(
    compiled: CompiledPlan, costs: Sequence[LaunchCost], target: Target, ceilings: Ceilings
) -> list[KernelProfile]:
    """One profile per launch, in order. `costs` belong to the launches."""
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
    timed = ceilings.measured or bool(cost.counters)
    verdict = (
        bound(cost.us, cost.terms, cost.counters, ceilings.launch_us)
        if timed
        else modeled_bottleneck(cost.us, cost.terms)
    )
    return KernelProfile(
        name=kernel.name, grid=launch.grid, num_warps=binary.num_warps, us=cost.us, share=cost.us / total_us,
        gb_per_s=rate / 1e9 if rate is not None else None,
        bandwidth_share=rate / ceilings.copy_bytes_per_s if rate is not None else None,
        tflop_per_s=flops / cost.us / 1e6 if flops else None,
        roofline_share=roofline_us(cost.bytes, cost.flops, ceilings) / cost.us if cost.bytes is not None else None,
        bound_by=verdict.by, evidence=verdict.evidence,
        registers=binary.registers, spill_bytes=binary.spill_bytes, shared_bytes=binary.block_shared_bytes,
        blocks_per_sm=fits.blocks_per_sm, occupancy=fits.warps_per_sm / target.warps_per_sm, limiter=fits.limiter,
        waves=math.prod(launch.grid) * binary.num_ctas / max(1, fits.blocks_per_sm * target.sm_count),
        tensor_core=tensor_core(binary), data_path=data_path(binary),
        schedule=schedule(binary, launch, target),
        mix={name: share for name, share in sorted(mix.items(), key=lambda item: -item[1])[:SHOWN] if share > 0},
        terms=cost.terms, counters=cost.counters, clock_mhz=cost.clock_mhz,
    )  # fmt: skip


@dataclass(frozen=True)
class CaseProfile:
    """Profiles of one case's launches, notes on what is unknown, and the bottleneck of all launches together."""

    kernels: tuple[KernelProfile, ...]
    notes: tuple[str, ...] = ()
    bottleneck: str = ""  # as `verify` tells it

    def as_data(self) -> dict[str, Any]:
        kernels = [kernel.as_data() for kernel in self.kernels]
        return {"kernels": kernels, "notes": list(self.notes), "bottleneck": self.bottleneck}

    def as_text(self, label: str) -> str:
        """The table, one paragraph per launch; `label` says whether times are measured or modeled, and where."""
        counted = any(kernel.gb_per_s is not None for kernel in self.kernels)
        counting_note = (
            "; bytes and tl.dot are counted by executing the IR, each line once, not measured" if counted else ""
        )
        return escaped(
            "\n".join(
                [
                    f"times are {label}{counting_note}",
                    *self.notes,
                    *([f"bottleneck: {self.bottleneck}"] if self.bottleneck else []),
                    *(line for kernel in self.kernels for line in _lines(kernel)),
                ]
            )
        )


def _lines(p: KernelProfile) -> list[str]:
    tensor = p.tensor_core if p.tensor_core != "none" else "no"
    grid = " x ".join(str(size) for size in p.grid if size > 1) or "1"
    counters = HardwareCounters.of(p.counters)
    achieved = f"; {counters.occupancy:.0%} achieved" if counters.occupancy is not None else ""
    clock = f", SM clock {p.clock_mhz:.0f} MHz" if p.clock_mhz is not None else ""
    lines = [
        f"{p.name}  {p.us:.2f} µs, {p.share:.0%} of the kernels' time{clock}",
        f"  bound by     {p.bound_by}: {p.evidence}",
        f"  launch       grid {grid}, {p.num_warps} warps, {p.waves:.2f} waves; "
        f"{tensor} tensor cores, data by {p.data_path}, {p.schedule}",
        f"  resources    {p.registers} registers, {p.spill_bytes} B spilled, {p.shared_bytes} B shared memory",
        f"  occupancy    {p.occupancy:.0%}: {p.blocks_per_sm} blocks an SM, limited by {p.limiter}{achieved}",
    ]
    rates = []
    if p.gb_per_s is not None and p.bandwidth_share is not None:
        rates.append(f"{p.gb_per_s:.0f} GB/s, {p.bandwidth_share:.0%} of the copy bandwidth")
    if p.tflop_per_s is not None and p.roofline_share is not None:
        rates.append(f"{p.tflop_per_s:.1f} TFLOP/s in tl.dot, {p.roofline_share:.0%} of the roofline")
    if (p.roofline_share or 0.0) > LIGHT:
        rates.append("faster than light: when timed alone it skips work, so do not believe its time")
    if rates:
        lines.append(f"  rates        {'; '.join(rates)}")
    lines += counters.lines(p.us)
    mix = ", ".join(f"{name} {share:.0%}" for name, share in p.mix.items())
    lines.append(f"  instructions {mix}")
    if p.terms:
        terms = sorted(p.terms.items(), key=lambda item: -item[1])
        lines.append("  modeled µs   " + ", ".join(f"{name} {us:.1f}" for name, us in terms if us >= 0.05))
    return lines


def roofline_us(moved: float | None, flops: Mapping[str, float], ceilings: Ceilings) -> float:
    """The longer of the times at the ceilings for the bytes, each once, and for tl.dot by kind.

    fp8 and int8 run at twice the bf16 rate. Kinds without a ceiling use the highest one, so that no share is too large.
    """
    rates = {
        "bf16": ceilings.bf16_flops, "fp16": ceilings.bf16_flops, "tf32": ceilings.tf32_flops,
        "tf32x3": ceilings.tf32_flops / 3, "fp32": ceilings.fp32_flops,
        "bf16x3": ceilings.bf16_flops / 3, "bf16x6": ceilings.bf16_flops / 6,
    }  # fmt: skip
    seconds = sum(amount / rates.get(kind, 2 * ceilings.bf16_flops) for kind, amount in flops.items())
    return max((moved or 0.0) / ceilings.copy_bytes_per_s, seconds) * 1e6


def bound(us: float, terms: Mapping[str, float], raw: Mapping[str, float], launch_us: float) -> Bottleneck:
    """What limits a launch of `us`: by counters (`raw`) if there are any, else by the model's terms in µs."""
    if us < LAUNCHES * launch_us:
        return Bottleneck("latency", f"an empty launch takes {launch_us:.1f} of its {us:.1f} µs")
    counters = HardwareCounters.of(raw)
    return _counted(counters, terms) or modeled_bottleneck(us, terms)


def _counted(counters: HardwareCounters, terms: Mapping[str, float]) -> Bottleneck | None:
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
        return Bottleneck(kind, f"{name} at {share:.0%} of peak")
    if counters.sm is not None and counters.sm >= NEAR:  # a pipe without its own counter
        unseen = counters.tensor is None and terms.get("tensor", 0.0) > terms.get("issue", 0.0)
        return Bottleneck(
            "tensor" if unseen else "issue", f"a pipe of the SMs at {counters.sm:.0%} of peak ({name} {share:.0%})"
        )
    waits = f"; warps wait most for {counters.stalls[0][0]}" if counters.stalls else ""
    return Bottleneck("latency", f"nothing is near its peak ({name} {share:.0%}){waits}")


def rest_note(times_us: Sequence[float], whole_us: float, torch_calls: Sequence[str]) -> str:
    """What to say where launches, each timed alone, take less than the plan: for its torch operations, or by much;
    empty elsewhere."""
    if torch_calls:
        names = ", ".join(dict.fromkeys(torch_calls))
        return f"launches take {math.fsum(times_us):.1f} of {whole_us:.1f} µs; the rest is PyTorch's: {names}"
    if not times_us or math.fsum(times_us) >= TOGETHER * whole_us:
        return ""
    return (
        f"timed alone, launches take {math.fsum(times_us):.1f} µs, but the plan takes {whole_us:.1f} µs: some skip "
        "work without the data of earlier nodes, so do not believe their times (verify times the plan)"
    )


@dataclass(frozen=True)
class Profiler:
    """Profiles recorded plans with a started runner."""

    task: Task
    runner: Runner
    ceilings: Ceilings
    measured: bool  # whether the runner's times are measured
    deadline_s: float

    def profile(self, parts: Sequence[CountPart], counters: bool | None = None) -> Mapping[str, CaseProfile]:
        """Profiles by case. `counters`: whether to run Nsight Compute; None: if there is a GPU.

        Raises UserError if a launch cannot be timed, InfraError.
        """
        timed = [self._timed(part) for part in parts]
        traffic = self._traffic(parts)
        counted = CounterReading()
        if counters or (counters is None and self.measured):
            counted = self.runner.counters(parts)
        target, profiles = target_for(self.runner.arch), {}
        for number, (part, apart, counts) in enumerate(zip(parts, timed, traffic, strict=True)):
            raw = [counted.of(number, launch) for launch in range(len(apart))]
            times = [one.median_us for one in apart]
            traffic_known, why = (None, counts) if isinstance(counts, str) else (counts, "")
            costs = costs_of(part.plan, times, traffic_known, raw, target)
            costs = [replace(cost, clock_mhz=one.clock_mhz) for cost, one in zip(costs, apart, strict=True)]
            whole = self._whole(part)
            rest = rest_note(times, whole.median_us, [node.op for node in part.plan.plan.aten_nodes])
            notes = tuple(note for note in (why, counted.why, rest) if note)
            kernels = tuple(profile(part.plan, costs, target, self.ceilings))
            profiles[part.case.name] = CaseProfile(kernels, notes, bottleneck_text(whole))
        return profiles

    def _whole(self, part: CountPart) -> Measurement:
        """All launches together. Raises UserError."""
        timed = self.runner.measure(part.plan, part.case, part.seed, False)
        if isinstance(timed, Checked):
            raise UserError(f"{part.case.name}, {timed.status}: {timed.reason}")
        return timed

    def _timed(self, part: CountPart) -> list[Measurement]:
        """Each launch alone. Raises UserError."""
        times = []
        for position in range(len(part.plan.plan.launches)):
            timed = self.runner.measure(alone(part.plan, position), part.case, part.seed, False)
            if isinstance(timed, Checked):
                raise UserError(f"launch {position} of {part.case.name}, {timed.status}: {timed.reason}")
            times.append(timed)
        return times

    def _traffic(self, parts: Sequence[CountPart]) -> list[Sequence[LaunchTraffic] | str]:
        """Traffic of each part's launches, or why it is unknown. Needs no GPU."""
        sampler = self.runner if isinstance(self.runner, CpuRunner) else None
        own = sampler or CpuRunner(self.task, self.runner.arch, self.deadline_s)
        try:
            if sampler is None:
                own.start()
            answers = [own.traffic(part.plan, part.case) for part in parts]
        finally:
            if sampler is None:
                own.close()
        why, prefix = "bytes and tl.dot are not counted: ", "it cannot be checked without a GPU: "
        return [why + a.reason.removeprefix(prefix) if isinstance(a, Checked) else a for a in answers]
