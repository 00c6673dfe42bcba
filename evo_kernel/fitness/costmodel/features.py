"""Features of a plan's launches, from machine code: for policies, the archive and witnesses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from evo_kernel.fitness.costmodel.targets import Target, occupancy
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan, Kernel, Launch
from evo_kernel.types import KernelFeatures, PlanFeatures


def plan_features(compiled: CompiledPlan, shares: Sequence[float] | None, target: Target) -> PlanFeatures:
    """Features of a plan. `shares`: of its time, per kernel launch in order; None: equal."""
    launches = compiled.plan.launches
    given = shares if shares is not None else [1 / max(1, len(launches))] * len(launches)
    return PlanFeatures(
        launches=len(launches),
        aten_nodes=len(compiled.plan.aten_nodes),
        kernels=tuple(
            _kernel(compiled.plan.kernels[launch.kernel], compiled.binaries[launch.kernel], launch, share, target)
            for launch, share in zip(launches, given, strict=True)
        ),
        scratch_bytes=compiled.plan.scratch_bytes,
    )


def torch_details(
    compiled: CompiledPlan, own_us: float | None = None, total_us: float | None = None
) -> dict[str, float]:
    """Details of a plan's torch operations: how often each is called, by name.

    With times, also `own_share`: the share of the plan's time in its own kernels. Empty without torch operations.
    """
    details: dict[str, float] = {}
    for node in compiled.plan.aten_nodes:
        details[node.op] = details.get(node.op, 0.0) + 1.0
    if details and own_us is not None and total_us:
        details["own_share"] = own_us / total_us
    return details


def _kernel(kernel: Kernel, binary: Binary, launch: Launch, share: float, target: Target) -> KernelFeatures:
    return KernelFeatures(
        name=kernel.name,
        grid=launch.grid,
        num_warps=binary.num_warps,
        num_stages=binary.stages,
        registers=binary.registers,
        spill_bytes=binary.spill_bytes,
        shared_bytes=binary.block_shared_bytes,
        tensor_core=tensor_core(binary),
        data_path=data_path(binary),
        schedule=schedule(binary, launch, target),
        instructions=dict(binary.instructions),
        share=share,
    )


def tensor_core(binary: Binary) -> str:
    """ "wgmma" (or its successor on sm_100), "mma" or "none", by the instructions present."""
    counts = binary.instructions
    if counts.get("wgmma", 0) or counts.get("tcgen05", 0):
        return "wgmma"
    return "mma" if counts.get("mma", 0) else "none"


def data_path(binary: Binary) -> str:
    """How most data is loaded: by TMA if there is any, else cp.async, else plain loads."""
    counts = binary.instructions
    if counts.get("tma.load", 0) or counts.get("tma.store", 0):
        return "tma"
    return "cp.async" if counts.get("cp.async", 0) else "load"


def schedule(binary: Binary, launch: Launch, target: Target) -> str:
    """ "warp-specialised", "persistent", "pipelined" or "plain"; the first that applies.

    Warp-specialised code reassigns registers between groups of warps. A kernel counts as persistent if its blocks fit
    on the GPU at once, fill at least half of the SMs, and it reads the number of programs or has a loop that starts at
    the program's number: a heuristic. Pipelined code has a loop with prefetched copies.
    """
    counts = binary.instructions
    if counts.get("warp-specialise", 0):
        return "warp-specialised"
    blocks = math.prod(launch.grid) * binary.num_ctas
    slots = (
        target.sm_count * occupancy(target, binary.registers, binary.block_shared_bytes, binary.num_warps).blocks_per_sm
    )
    strides = "tt.get_num_programs" in binary.ir or _walks_from_program(binary.ir)
    if counts.get("loops", 0) and target.sm_count / 2 <= blocks <= slots and strides:
        return "persistent"
    return "pipelined" if binary.stages > 1 else "plain"


def _walks_from_program(ir: str) -> bool:
    """Whether a loop starts at a program's number."""
    programs = set(re.findall(r"(%\w+) = tt\.get_program_id", ir))
    return any(start in programs for start in re.findall(r"scf\.for %\w+ = (%\w+) to", ir))
