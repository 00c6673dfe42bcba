"""Modeled time of a compiled plan, for machines without the GPU. It ranks kernels; it does not replace a clock.

For each launch, with `slots` = SMs × blocks that fit on one (occupancy), and per-program counts from counted traffic:

    dram     different lines read (and read again, as far as L2 cannot hold them) + written, ÷ copy bandwidth
    l2       sectors that all accesses touch ÷ L2 bandwidth
    tensor   flops of tl.dot ÷ the rate of its path (wgmma, mma, or none) × ragged last round of programs over SMs
    issue    warp instructions ÷ 4 a clock and SM, from the machine code: what lies outside loops once, what lies in
             loops once an iteration; transcendental, shared-memory and spill instructions at their own rates
    latency  rounds of loads that wait for each other × memory latency × rounds of programs over the slots;
             copies that run ahead (cp.async or TMA in a loop, num_stages) divide it
    atomics  atomic elements ÷ their rate at L2

    time = (sum of terms^mix)^(1/mix) + exposed latency + ragged tail + launch overhead

`mix` says how badly the terms overlap: 1 would be not at all, and the larger it is, the more the longest term rules.
Where nothing runs ahead and few warps are resident, latency is exposed: it adds to the time. Known to be ignored: bank
conflicts, L1 hits, DRAM pages and refresh, power capping, instruction cache, dependent launches, clusters and
multicast, what order waves really run in, contention of atomics on one address. Where the constants are from: see
`Constants`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_kernel.fitness.ir.launch_traffic import WAVE_PROGRAMS, LaunchTraffic
from evo_kernel.fitness.plan import Aten, CompiledPlan, Constant, Copy, Fill, Launch
from evo_kernel.fitness.targets import H200, Occupancy, Target, occupancy


@dataclass(frozen=True)
class Constants:
    """What the target table does not say.

    Printed by `python -m benchmarks.calibrate fit benchmarks/calibration/h200.jsonl.xz`, from 11,512 plans measured on
    an H200; see docs/model.md for how well they rank, and which of them sit at their bounds. The data do not tell what
    is marked an estimate: the fit left it where it was.
    """

    launch_us: float = 1.3  # one kernel in a graph; measured apart, 1.24
    memory_latency_us: float = 0.308  # a load that misses L2, what overlaps within a program taken off
    l2_latency_us: float = 0.154
    block_us: float = 0.333  # start, drain and epilogue of a block
    issue_efficiency: float = 0.956  # share of issue slots that dependent instructions leave usable
    mma_share: float = 0.66  # of the vendor's rate that mma.sync reaches on sm_90; at its bound
    wgmma_share: float = 0.85  # of the vendor's rate that warp-group instructions reach; at its bound, reached
    fp32_share: float = 0.7  # of the plain units' rate that a dot without tensor instructions reaches; an estimate
    mufu_per_clock: float = 16.0  # lanes, an SM (CUDA programming guide, arithmetic throughput, 9.0)
    shared_cycles: float = 3.91  # of the shared-memory pipe for one warp's 128-bit access
    spill_cycles: float = 12.8  # a warp's local-memory access through L1
    l2_usable: float = 0.998  # of L2 before lines are evicted that are needed again
    hiding_warps: float = 57.3  # resident warps an SM that hide the latency of loads which nothing runs ahead of
    atomics_per_us: float = 2.4e5  # elements, whole GPU: about one a clock and L2 slice; an estimate
    ragged_share: float = 0.0763  # of the idle slots in the last round of programs that shows in the time
    uneven_share: float = 0.561  # of the busiest program's extra work that does
    mix: float = 1.5  # exponent of the mean; at its bound
    l2_bytes_per_us: float = 1.14e7  # of an H200, L1 hits included; other GPUs by their tables' ratio to it


CONSTANTS = Constants()


@dataclass(frozen=True)
class LaunchFacts:
    """What the model reads of one kernel launch: enough to model it again with other constants, without its code."""

    registers: int  # a thread
    shared_bytes: int  # a block, reserved and asked for
    num_warps: int
    num_stages: int
    instructions: Mapping[str, int]  # as `Binary.instructions`
    traffic: LaunchTraffic
    num_ctas: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.num_warps


@dataclass(frozen=True)
class PlanFacts:
    """What the model reads of a plan."""

    launches: tuple[LaunchFacts, ...]
    moved_bytes: tuple[float, ...] = ()  # read and written by each node that is no kernel launch


@dataclass(frozen=True)
class ModeledLaunch:
    """One kernel launch: its time and the terms that made it, in µs."""

    us: float
    terms: Mapping[str, float]


@dataclass(frozen=True)
class ModeledTime:
    """A plan: `launches` are its kernel launches in order; `total_us` also counts fills and torch operations."""

    total_us: float
    launches: tuple[ModeledLaunch, ...]


def modeled_time(
    compiled: CompiledPlan, traffic: Sequence[LaunchTraffic], target: Target, constants: Constants = CONSTANTS
) -> ModeledTime:
    """Modeled time of a plan. `traffic` belongs to the plan's kernel launches, in order."""
    return time_of(facts_of(compiled, traffic), target, constants)


def time_of(facts: PlanFacts, target: Target, constants: Constants = CONSTANTS) -> ModeledTime:
    """Modeled time of a plan of which only the facts are at hand."""
    launches = tuple(_launch(launch, target, constants) for launch in facts.launches)
    others = sum(constants.launch_us + moved / target.copy_bytes_per_s * 1e6 for moved in facts.moved_bytes)
    return ModeledTime(total_us=sum(launch.us for launch in launches) + others, launches=launches)


def facts_of(compiled: CompiledPlan, traffic: Sequence[LaunchTraffic]) -> PlanFacts:
    """All that the model reads of a plan. `traffic` belongs to the plan's kernel launches, in order."""
    launches = []
    for launch, seen in zip(compiled.plan.launches, traffic, strict=True):
        binary, kernel = compiled.binaries[launch.kernel], compiled.plan.kernels[launch.kernel]
        launches.append(
            LaunchFacts(
                registers=binary.registers,
                shared_bytes=binary.block_shared_bytes,
                num_warps=binary.num_warps,
                num_stages=kernel.num_stages,
                instructions=binary.instructions,
                traffic=seen,
                num_ctas=binary.num_ctas,
            )
        )
    moved = tuple(_moved(node) for node in compiled.plan.nodes if not isinstance(node, Launch))
    return PlanFacts(tuple(launches), moved)


def _moved(node: Fill | Copy | Constant | Aten) -> float:
    if isinstance(node, Aten):
        views = (*node.views, *(v for v in node.outputs if v))
    else:
        views = (node.source, node.target) if isinstance(node, Copy) else (node.view,)
    return float(sum(view.elements * view.item_bytes for view in views))


def _launch(launch: LaunchFacts, target: Target, c: Constants) -> ModeledLaunch:
    seen = launch.traffic
    fits = occupancy(target, launch.registers, launch.shared_bytes, launch.num_warps)
    blocks = max(1, fits.blocks_per_sm)
    terms = {
        "dram": _dram_us(seen, target, c),
        "l2": seen.programs * (seen.load_sector_bytes + seen.store_sector_bytes) / _l2_rate(target, c),
        "tensor": _tensor_us(launch, target, c),
        "issue": _issue_us(launch, target, c),
        "latency": _latency_us(launch, target, blocks, c),
        "atomics": seen.programs * seen.atomic_elements / c.atomics_per_us,
    }
    busy = sum(us**c.mix for us in terms.values()) ** (1 / c.mix)
    exposed = 0.0 if _runs_ahead(launch) else max(0.0, 1.0 - fits.warps_per_sm / c.hiding_warps)
    terms["exposed"] = exposed * terms["latency"]
    terms["tail"] = _tail_us(busy, seen, target, fits, c)
    terms["launch"] = c.launch_us
    return ModeledLaunch(us=busy + terms["exposed"] + terms["tail"] + c.launch_us, terms=terms)


def _l2_rate(target: Target, c: Constants) -> float:
    """Bytes a µs."""
    return c.l2_bytes_per_us * target.l2_bytes_per_s / H200.l2_bytes_per_s


def _runs_ahead(launch: LaunchFacts) -> bool:
    """Whether the code copies asynchronously inside a loop."""
    return launch.instructions.get("in_loop.cp.async", 0) + launch.instructions.get("in_loop.tma.load", 0) > 0


def _dram_us(seen: LaunchTraffic, target: Target, c: Constants) -> float:
    """Compulsory lines once; lines that later waves ask for again as far as all of them do not fit in L2."""
    waves = seen.programs / min(seen.programs, WAVE_PROGRAMS)
    asked = max(seen.grid_load_bytes, waves * seen.wave_load_bytes)
    room = c.l2_usable * target.l2_bytes
    missing = max(0.0, 1.0 - room / max(seen.grid_load_bytes, 1.0))
    read = seen.grid_load_bytes + missing * (asked - seen.grid_load_bytes)
    return (read + seen.grid_store_bytes) / target.copy_bytes_per_s * 1e6


def _tensor_us(launch: LaunchFacts, target: Target, c: Constants) -> float:
    """Time on the tensor cores, or on the plain units where the code has no tensor instruction."""
    rates = {
        "bf16": target.bf16_flops, "fp16": target.bf16_flops, "tf32": target.tf32_flops, "fp64": target.fp64_flops,
        "fp8e5": target.fp8_flops or target.bf16_flops, "fp8e4nv": target.fp8_flops or target.bf16_flops,
        "int8": target.fp8_flops or target.bf16_flops, "tf32x3": target.tf32_flops / 3,
    }  # fmt: skip
    seen, counts = launch.traffic, launch.instructions
    wide = counts.get("wgmma", 0) or counts.get("tcgen05", 0)
    if wide:
        share = c.wgmma_share
    elif counts.get("mma", 0):
        share = c.mma_share if target.has_wgmma else 1.0
    else:
        share = 0.0
    rounds = -(-seen.programs // target.sm_count) * target.sm_count / seen.programs
    seconds = sum(
        flops
        / (rates.get(kind, target.fp32_flops) * share if share and kind in rates else c.fp32_share * target.fp32_flops)
        for kind, flops in seen.flops.items()
    )
    return seen.programs * seconds * rounds * 1e6


def warp_instructions(launch: LaunchFacts, family: str = "all") -> float:
    """Executed by one program: static counts outside loops, plus in loops times how often these are walked through."""
    static, inside = launch.instructions.get(family, 0), launch.instructions.get(f"in_loop.{family}", 0)
    return launch.num_warps * (static - inside + inside * loop_repeats(launch))


def loop_repeats(launch: LaunchFacts) -> float:
    """How often a program walks through the code in its loops.

    The compiler unrolls: one round of the code may be several iterations of the source. What loads bring tells how
    many: the bytes that a thread asked for, less what the code outside loops loads, ÷ what the code in loops loads.
    Loops without such loads (TMA brings whole tiles) are taken to be as in the source.
    """
    seen, counts = launch.traffic, launch.instructions
    inside = counts.get("in_loop.load_bytes", 0)
    if inside:
        outside = counts.get("load_bytes", 0) - inside
        return max(1.0, (seen.load_bytes / launch.threads - outside) / inside)
    return max(1.0, seen.iterations / max(1, counts.get("loops", 0)))


def _issue_us(launch: LaunchFacts, target: Target, c: Constants) -> float:
    """The busiest of an SM's issue slots, transcendental unit and shared-memory pipe, for its share of the programs."""
    shared = warp_instructions(launch, "ld.shared") + warp_instructions(launch, "st.shared")
    cycles = max(
        warp_instructions(launch) / (4 * c.issue_efficiency),
        warp_instructions(launch, "mufu") * target.warp / c.mufu_per_clock,
        shared * c.shared_cycles,
    )
    cycles += warp_instructions(launch, "spill") * c.spill_cycles
    programs_per_sm = max(1.0, launch.traffic.programs / target.sm_count)
    return programs_per_sm * cycles / target.clock_mhz


def _latency_us(launch: LaunchFacts, target: Target, blocks: int, c: Constants) -> float:
    """Rounds of loads one after another, overlapped by resident blocks and by copies that run ahead."""
    seen = launch.traffic
    depth = max(1, launch.num_stages - 1) if _runs_ahead(launch) else 1
    reused = seen.load_sector_bytes * seen.programs / max(seen.grid_load_bytes, 1.0) > 2.0
    latency = c.l2_latency_us if reused else c.memory_latency_us
    waves = max(1.0, seen.programs / (target.sm_count * blocks))
    per_program = c.block_us + (seen.rounds / depth if seen.rounds else 0.0) * latency
    return waves * per_program


def _tail_us(busy: float, seen: LaunchTraffic, target: Target, fits: Occupancy, c: Constants) -> float:
    """The last round of programs, if it fills only part of the slots, and programs that take longer than others."""
    slots = target.sm_count * max(1, fits.blocks_per_sm)
    waves = seen.programs / slots
    ragged = (math.ceil(waves) - waves) / max(waves, 1.0) * busy if waves > 1 else 0.0
    uneven = (seen.imbalance - 1.0) * busy / max(waves, 1.0)
    return c.ragged_share * ragged + c.uneven_share * max(0.0, uneven)
