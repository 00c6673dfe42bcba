"""Checks whether a GPU can launch a plan: every number is compared with the device's limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evo_kernel.fitness.plan.launch_plan import MAX_GRID, Binary, CompiledPlan, Launch


class PlanFault(Exception):
    """The plan cannot be launched: the candidate's fault; the message is a sentence."""


class CudaFault(Exception):
    """A CUDA call failed. After most errors the context is lost. `code`: the driver's number."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


PORTABLE_CLUSTER = 8  # blocks; up to 16 need the non-portable attribute (CUDA programming guide, compute 9.0)
MAX_SCRATCH_BYTES = 8 << 30  # global and profile scratch of all launches of a plan, per arena


@dataclass(frozen=True)
class DeviceLimits:
    """Limits of one GPU."""

    arch: int  # compute capability × 10
    shared_bytes: int  # per block, with opt-in
    threads: int  # per block
    sm_count: int
    cooperative: bool = True
    reserved_shared_bytes: int = 0  # per block, by the driver


@dataclass(frozen=True)
class ScratchNeed:
    """Scratch of one launch in bytes: total and alignment, global and profile."""

    global_bytes: int = 0
    global_align: int = 1
    profile_bytes: int = 0
    profile_align: int = 1

    @property
    def total(self) -> int:
        return self.global_bytes + self.profile_bytes


def check_plan(plan: CompiledPlan, limits: DeviceLimits) -> None:
    """Raise PlanFault for the first launch that this GPU cannot execute."""
    if plan.plan.target != limits.arch:
        raise PlanFault(f"the plan is compiled for sm_{plan.plan.target}, this GPU is sm_{limits.arch}: record it here")
    for launch in plan.plan.launches:
        _check_launch(plan.binaries[launch.kernel], launch, limits)
    total = sum(need.total for need in scratch_needs(plan))
    if total > MAX_SCRATCH_BYTES:
        raise PlanFault(f"the launches need {total / (1 << 30):.1f} GB of scratch: use fewer programs")


def _check_launch(binary: Binary, launch: Launch, limits: DeviceLimits) -> None:
    threads = binary.threads if launch.block is None else math.prod(launch.block)
    shared, ctas, blocks = binary.block_shared_bytes, binary.num_ctas, launch.grid[0] * binary.num_ctas
    faults = (
        (threads > limits.threads, f"has {threads} threads a block; this GPU takes {limits.threads}"),
        (shared > limits.shared_bytes, f"needs {shared} bytes of shared memory; this GPU has {limits.shared_bytes}"),
        (ctas & (ctas - 1), f"has clusters of {ctas} blocks; a power of two up to 16 is possible"),
        (ctas > 1 and limits.arch < 90, f"uses clusters, which sm_{limits.arch} does not have"),
        (blocks > MAX_GRID[0], f"has a grid of {launch.grid[0]} clusters of {ctas}: too many blocks"),
        (binary.cooperative and not limits.cooperative, "is launched cooperatively, which this GPU does not support"),
    )
    if fault := next((text for wrong, text in faults if wrong), ""):
        raise PlanFault(f"kernel {binary.symbol} {fault}")


def check_cooperative(binary: Binary, launch: Launch, blocks_per_sm: int, limits: DeviceLimits) -> None:
    """Raise PlanFault unless all blocks of a cooperative launch fit on the GPU at once."""
    blocks = math.prod(launch.grid) * binary.num_ctas
    if blocks > blocks_per_sm * limits.sm_count:
        raise PlanFault(
            f"kernel {binary.symbol} is launched cooperatively with {blocks} blocks, but only "
            f"{blocks_per_sm * limits.sm_count} fit on this GPU at once: use a smaller grid"
        )


def scratch_needs(plan: CompiledPlan) -> tuple[ScratchNeed, ...]:
    """Scratch of each launch, in order."""
    return tuple(scratch_need(plan, launch) for launch in plan.plan.launches)


def scratch_need(plan: CompiledPlan, launch: Launch) -> ScratchNeed:
    """Scratch as Triton's launcher allocates it: bytes per block × cluster size × grid."""
    binary = plan.binaries[launch.kernel]
    blocks = math.prod(launch.grid) * binary.num_ctas
    return ScratchNeed(
        binary.global_scratch_bytes * blocks,
        max(1, binary.global_scratch_align),
        binary.profile_scratch_bytes * blocks,
        max(1, binary.profile_scratch_align),
    )
