"""Models the time of a compiled plan without a GPU, to rank kernels. It does not replace a measurement.

For each launch, with `slots` = SMs × blocks resident on one (occupancy), and counts per program from counted traffic:

    dram     distinct lines read (again, as far as L2 cannot hold them) + written, ÷ copy bandwidth
    l2       sectors of all accesses ÷ L2 bandwidth, or lines that warps store to ÷ the rate of SMs
    tensor   flops of tl.dot ÷ the rate of its instructions (wgmma, mma, or none), with a partial last wave over SMs
    issue    warp instructions ÷ 4 per clock and SM, from the machine code: code outside loops once, code in loops as
             often as facts.py tells; what takes longer in its unit than to issue, at the unit's rate
    latency  dependent rounds of loads × memory latency × waves of programs over the slots; divided by the number of
             iterations by which copies (cp.async or TMA in a loop) are issued ahead
    atomics  atomic elements ÷ their rate at L2, or requests of one line ÷ its rate

    time = (sum of terms^mix)^(1/mix) + exposed latency + partial last wave + launch overhead

The time is at least that of the busiest program alone on an SM, plus the launch.

`mix` describes how well the terms overlap: not at all at 1; the larger it is, the more the longest term dominates.
Without prefetching and with few resident warps, latency is exposed: it adds to the time. Not modeled: bank conflicts,
L1 hits, DRAM pages and refresh, power capping, instruction cache, dependent launches, multicast, the real order of
waves. See `Constants` for the sources of the constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from evo_kernel.fitness.costmodel.facts import PRODUCT, LaunchFacts, PlanFacts, Rounds, facts_of
from evo_kernel.fitness.costmodel.targets import H200, Occupancy, Target, occupancy
from evo_kernel.fitness.costmodel.torch_costs import TorchCost
from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, WAVE_PROGRAMS, LaunchTraffic, ProgramWork, TorchWork
from evo_kernel.fitness.plan.launch_plan import CompiledPlan


@dataclass(frozen=True)
class Constants:
    """Constants of the model that the target table lacks.

    Fitted by `python -m benchmarks.calibrate fit benchmarks/calibration/h200.jsonl.xz` from 11,512 plans measured on an
    H200. docs/internals/time-model.md tells how well they rank kernels and which are at their bounds. The data do not
    determine those marked as estimates.
    """

    launch_us: float = 1.3  # one kernel in a graph; 1.24 when measured separately
    memory_latency_us: float = 0.308  # a load that misses L2, without the part that overlaps within a program
    l2_latency_us: float = 0.154
    block_us: float = 0.333  # start, drain and epilogue of a block
    issue_efficiency: float = 0.956  # share of issue slots that instruction dependencies leave usable
    mma_share: float = 0.66  # of the vendor's rate, for mma.sync on sm_90; at its bound
    wgmma_share: float = 0.85  # of the vendor's rate, for warp-group instructions; at its bound
    fp32_share: float = 0.7  # of the fp32 rate, for a dot without tensor instructions; an estimate
    shared_cycles: float = 3.91  # of the shared-memory pipe for one warp's 128-bit access
    spill_cycles: float = 12.8  # a warp's local-memory access through L1
    l2_usable: float = 0.998  # share of L2 available before reused lines are evicted
    hiding_warps: float = 57.3  # resident warps per SM that hide the latency of loads without prefetching
    atomics_per_us: float = 2.4e5  # elements, whole GPU: about one per clock and L2 slice; an estimate
    store_cycles: float = 3.7  # of an SM for each line that a warp stores to: random places on an H200
    crowd_cycles: float = 1.3  # of L2 for each atomic request of one line; the least seen on an H200, mostly 5
    ragged_share: float = 0.0763  # share of the idle slots in the last wave of programs that adds to the time
    uneven_share: float = 0.561  # share of the busiest program's extra work that adds to the time
    mix: float = 1.5  # exponent of the mean; at its bound
    l2_bytes_per_us: float = 1.14e7  # of an H200, L1 hits included; other GPUs by the ratio of their tables


CONSTANTS = Constants()
LANES = {"special": 16.0, "mufu": 16.0, "alu": 64.0, "imad": 64.0, "shuffle": 32.0, "atoms": 32.0, "sync": 16.0}
"""Lanes a clock and SM of each unit: CUDA programming guide, arithmetic throughput, compute capability 9.0; measured so
on an H200, but for barriers (14). Special functions, conversions, bit counts and warp reductions; logic, comparisons,
selections and sums of integers; their products; shuffles; atomic operations on shared memory, where no two are on one
address; barriers."""
_SM_BYTES = 64.0
"""That move between an SM and L2 in a clock; an estimate."""


@dataclass(frozen=True)
class ModeledLaunch:
    """Modeled time of one kernel launch and its terms, in µs."""

    us: float
    terms: Mapping[str, float]


@dataclass(frozen=True)
class ModeledTime:
    """Modeled time of a plan: `launches` are its kernel launches in order; `total_us` includes fills and torch
    operations."""

    total_us: float
    launches: tuple[ModeledLaunch, ...]


def modeled_time(
    compiled: CompiledPlan,
    traffic: Sequence[LaunchTraffic],
    target: Target,
    constants: Constants = CONSTANTS,
    inside: Mapping[int, TorchWork] = MappingProxyType({}),
) -> ModeledTime:
    """Modeled time of a plan. `traffic` belongs to the plan's kernel launches, in order; `inside`: see `facts_of`."""
    return time_of(facts_of(compiled, traffic, inside), target, constants)


def time_of(facts: PlanFacts, target: Target, constants: Constants = CONSTANTS) -> ModeledTime:
    """Modeled time from the model's inputs alone."""
    launches = tuple(_launch(launch, target, constants) for launch in facts.launches)
    others = sum(_torch_us(cost, target, constants) for cost in facts.others)
    return ModeledTime(total_us=sum(launch.us for launch in launches) + others, launches=launches)


def _torch_us(cost: TorchCost, target: Target, c: Constants) -> float:
    """Time of a torch operation: a launch plus the longest of moving, touching, computing, updating and waiting."""
    rate = _rates(target).get(cost.kind, 0.0) * c.wgmma_share or target.fp32_flops * c.fp32_share
    moves, computes = cost.moved_bytes / target.copy_bytes_per_s * 1e6, cost.flops / rate * 1e6
    updates, waits = cost.crowd * c.crowd_cycles / target.clock_mhz, cost.steps * c.l2_latency_us
    return c.launch_us + max(moves, computes, cost.sector_bytes / _l2_rate(target, c), updates, waits)


def _launch(launch: LaunchFacts, target: Target, c: Constants) -> ModeledLaunch:
    traffic = launch.traffic
    walked = Rounds(launch)
    takes, exposed = walked.waits()
    fits = occupancy(target, launch.registers, launch.shared_bytes, launch.num_warps)
    blocks = max(1, fits.blocks_per_sm)
    terms = {
        "dram": _dram_us(traffic, target.sm_count * blocks / launch.num_ctas, target, c),
        "l2": traffic.programs * _l2_us(traffic, walked, target, c),
        "tensor": _tensor_us(launch, walked, target, blocks, c),
        "issue": _issue_us(launch, walked, target, blocks, c),
        "latency": _latency_us(launch, takes, target, blocks, c),
        "atomics": max(
            traffic.programs * traffic.atomic_elements / c.atomics_per_us,
            traffic.crowd * c.crowd_cycles / target.clock_mhz,
        ),
    }
    busy = sum(us**c.mix for us in terms.values()) ** (1 / c.mix)
    resident = min(blocks, max(1.0, launch.blocks / target.sm_count))
    terms["exposed"] = exposed * _shows(launch, resident, c) * terms["latency"]
    terms["tail"] = _tail_us(busy, launch, target, fits, c)
    together = busy + terms["exposed"] + terms["tail"]
    alone = max((_alone_us(program, launch, walked, target, c) for program in traffic.busiest), default=0.0)
    terms["busiest"] = max(0.0, alone - together)
    terms["launch"] = c.launch_us
    return ModeledLaunch(us=together + terms["busiest"] + c.launch_us, terms=terms)


def _alone_us(program: ProgramWork, launch: LaunchFacts, walked: Rounds, target: Target, c: Constants) -> float:
    """Time of one program alone on an SM, a lower bound for the launch."""
    traffic, (takes, exposed) = launch.traffic, walked.waits(program)
    bytes_, sectors = traffic.load_bytes + traffic.store_bytes, _sector_bytes(traffic, walked)
    latency = c.block_us + program.rounds * takes * _load_us(traffic, c)
    terms = (
        _product_us(program.flops, launch, walked, target, c, launch.num_warps, program)
        * target.sm_count
        / launch.num_ctas,
        _cycles(walked, target, c, launch.num_warps, program) / launch.num_ctas / target.clock_mhz,
        program.moved_bytes * sectors / max(bytes_, 1.0) / _SM_BYTES / launch.num_ctas / target.clock_mhz,
        latency,
    )
    return sum(us**c.mix for us in terms) ** (1 / c.mix) + exposed * _shows(launch, 1.0, c) * latency


def _l2_rate(target: Target, c: Constants) -> float:
    """L2 bandwidth in bytes per µs."""
    return c.l2_bytes_per_us * target.l2_bytes_per_s / H200.l2_bytes_per_s


def _sector_bytes(traffic: LaunchTraffic, walked: Rounds) -> float:
    """Of the accesses of one program, all its blocks together."""
    return walked.repeats * traffic.load_sector_bytes + traffic.store_sector_bytes


def _l2_us(traffic: LaunchTraffic, walked: Rounds, target: Target, c: Constants) -> float:
    """Of one program at the rate of the whole GPU, whose SMs store a line at a time."""
    sectors = _sector_bytes(traffic, walked) / _l2_rate(target, c)
    return max(sectors, traffic.store_lines * c.store_cycles / target.sm_count / target.clock_mhz)


def _dram_us(traffic: LaunchTraffic, resident: float, target: Target, c: Constants) -> float:
    """Each line once; lines that later waves request again, as far as they do not fit in L2; lines that programs read
    again after more than it holds, with what the others that are `resident` read meanwhile. Lines that a program has
    stored itself are no reads of memory where L2 holds all that the resident programs read and write; those that it
    stores again after more than that are written again."""
    wave = min(traffic.programs, WAVE_PROGRAMS)
    waves = traffic.programs / wave
    asked = max(traffic.grid_load_bytes, waves * traffic.wave_load_bytes)
    room = c.l2_usable * target.l2_bytes
    missing = max(0.0, 1.0 - room / max(traffic.grid_load_bytes, 1.0))
    together = min(traffic.grid_load_bytes, traffic.wave_load_bytes * max(1.0, resident / wave))
    again = sum(share for number, share in enumerate(traffic.rereads) if together * 2 ** (-number / 2) > room)
    others = max(0.0, traffic.grid_store_bytes - traffic.own_load_bytes) / traffic.programs
    written = others * min(resident, traffic.programs)
    own = min(traffic.own_load_bytes, traffic.grid_load_bytes) if together + written <= room else 0.0
    read = traffic.grid_load_bytes + missing * (asked - traffic.grid_load_bytes) + again * asked - own
    between = together + written
    rewritten = sum(share for number, share in enumerate(traffic.restores) if between * 2 ** (-number / 2) > room)
    return (read + (1.0 + rewritten) * traffic.grid_store_bytes) / target.copy_bytes_per_s * 1e6


def _rates(target: Target) -> dict[str, float]:
    """Tensor core rates by kind of operands, in operations per second; unsupported kinds are omitted."""
    eight_bits = target.fp8_flops or target.bf16_flops
    return {
        "bf16": target.bf16_flops, "fp16": target.bf16_flops, "tf32": target.tf32_flops,
        "fp64": target.fp64_tensor_flops,
        "fp8e5": eight_bits, "fp8e4nv": eight_bits, "int8": eight_bits, "tf32x3": target.tf32_flops / 3,
        "bf16x3": target.bf16_flops / 3, "bf16x6": target.bf16_flops / 6,
    }  # fmt: skip


def _tensor_us(launch: LaunchFacts, walked: Rounds, target: Target, blocks: int, c: Constants) -> float:
    """Time on the tensor cores of all SMs, including the partial last wave."""
    warps = launch.num_warps * min(float(blocks), max(1.0, launch.blocks / target.sm_count))
    rounds = -(-launch.blocks // target.sm_count) * target.sm_count / launch.blocks
    return launch.traffic.programs * rounds * _product_us(launch.traffic.flops, launch, walked, target, c, warps)


def _product_us(
    flops: Mapping[str, float], launch: LaunchFacts, walked: Rounds, target: Target, c: Constants, warps: float,
    by: ProgramWork | None = None,
) -> float:  # fmt: skip
    """Time of one program's dots at the rate of all SMs: on tensor cores, or on fp32 units without tensor instructions.

    At least that of the tensor instructions in the code: warps that a tile has no parts for repeat those of others. If
    the code has two kinds, the slower counts: code does not tell which one the dots use.
    Of the `warps` on an SM, each gives mma.sync to the tensor core of its own quarter.
    Triton gives tensor cores 8-bit floats as float16 where it does not use wgmma (m16n8k16.f32.f16.f16 for sm_90).
    """
    counts, rates = launch.instructions, _rates(target)
    if counts.get("mma", 0):
        share = (c.mma_share if target.has_wgmma else 1.0) * min(1.0, warps / 4)
        if target.has_wgmma:
            rates |= {kind: target.bf16_flops for kind in rates if kind.startswith("fp8")}
    else:
        share = c.wgmma_share if counts.get("wgmma", 0) or counts.get("tcgen05", 0) else 0.0
    plain = {kind: c.fp32_share * (target.fp64_flops if kind == "fp64" else target.fp32_flops) for kind in flops}
    asked = sum(count / (rates.get(kind, 0.0) * share or plain[kind]) for kind, count in flops.items())
    made = walked.instructions("products", by) * PRODUCT / (target.bf16_flops * share) if share else 0.0
    return 1e6 * max(asked, made)


def _issue_us(launch: LaunchFacts, walked: Rounds, target: Target, blocks: int, c: Constants) -> float:
    """Issue time of an SM's share of the programs, of which `blocks` fit at a time."""
    blocks_per_sm = max(1.0, launch.blocks / target.sm_count)
    warps = launch.num_warps * min(float(blocks), blocks_per_sm)
    return blocks_per_sm * _cycles(walked, target, c, warps) / launch.num_ctas / target.clock_mhz


def _cycles(walked: Rounds, target: Target, c: Constants, warps: float, by: ProgramWork | None = None) -> float:
    """Cycles of one program in the busiest of an SM's issue slots and units.

    An SM has four of each but of shared memory, which moves what is shuffled too. Each of the `warps` on the SM issues
    one instruction a clock at most, to the units of its own quarter.
    """

    def on(unit: str) -> float:
        return walked.instructions(unit, by) * target.warp / (LANES.get(unit) or target.doubles_per_clock)

    used = min(1.0, warps / 4)
    shared = walked.instructions("ld.shared", by) + walked.instructions("st.shared", by)
    cycles = max(
        walked.instructions("all", by) / (4.0 * used * c.issue_efficiency),
        max(map(on, ("special", "mufu", "alu", "imad", "double"))) / used,  # old data have no units but "mufu"
        shared * c.shared_cycles + on("shuffle") + on("atoms"),
        on("sync"),
        walked.in_one_warp(warps, by) / c.issue_efficiency,  # which issues one a clock
    )
    return cycles + walked.instructions("spill", by) * c.spill_cycles


def _latency_us(launch: LaunchFacts, takes: float, target: Target, blocks: int, c: Constants) -> float:
    """Time of consecutive rounds of loads, overlapped by resident blocks and by prefetching.

    `takes`: latencies per round.
    """
    waves = max(1.0, launch.blocks / (target.sm_count * blocks))
    return waves * (c.block_us + launch.traffic.rounds * takes * _load_us(launch.traffic, c))


def _shows(launch: LaunchFacts, blocks: float, c: Constants) -> float:
    """Share of exposed latency that other warps do not hide, with `blocks` on an SM.

    Only warps with loads of their own hide latency; each of their lanes loads at least a byte that no other one does.
    """
    traffic = launch.traffic
    loaded = traffic.load_bytes if traffic.distinct_load_bytes is None else traffic.distinct_load_bytes
    loading = loaded / max(1.0, traffic.rounds) / 32 / launch.num_ctas
    return max(0.0, 1.0 - blocks * min(launch.num_warps, max(1.0, loading)) / c.hiding_warps)


def _load_us(traffic: LaunchTraffic, c: Constants) -> float:
    """Mean latency of a round: that of L2 where it reads nothing new, to its program or to the launch.

    Rounds of atomic operations may all be new. Where rounds with new lines were not counted, latency is that of L2 if
    lines are requested more than twice in the mean.
    """
    if traffic.new_rounds is None:
        new = float(traffic.load_sector_bytes * traffic.programs <= 2.0 * max(traffic.grid_load_bytes, 1.0))
    else:
        changed = traffic.grid_store_bytes if traffic.atomic_elements else 0.0
        lines = (traffic.grid_load_bytes + changed) / LINE_BYTES / traffic.programs
        new = min(1.0 if changed else traffic.new_rounds, lines / max(traffic.rounds, 1e-9))
    return c.l2_latency_us + new * (c.memory_latency_us - c.l2_latency_us)


def _tail_us(busy: float, launch: LaunchFacts, target: Target, fits: Occupancy, c: Constants) -> float:
    """Idle time in the last wave of programs, and extra time of programs that take longer than others."""
    slots = target.sm_count * max(1, fits.blocks_per_sm)
    waves = launch.blocks / slots
    ragged = (math.ceil(waves) - waves) / max(waves, 1.0) * busy if waves > 1 else 0.0
    uneven = (launch.traffic.imbalance - 1.0) * busy / max(waves, 1.0)
    return c.ragged_share * ragged + c.uneven_share * max(0.0, uneven)
