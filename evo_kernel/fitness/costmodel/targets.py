"""Table of target GPUs: properties that the recorder reports, and constants of the time model.

Each compute capability is represented by one GPU. Limits of an SM come from the CUDA programming guide's table of
technical specifications; clocks, sizes and rates from the vendors' datasheets (dense rates), except fields of the H200
marked as measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from evo_kernel.errors import UserError
from evo_kernel.types.gpus import MODELED_GPUS

WARP = 32


@dataclass(frozen=True)
class Target:
    """One GPU. Sizes in bytes, rates in operations (a fused multiply-add is two) or bytes per second."""

    arch: int  # compute capability × 10
    sm_count: int
    shared_bytes_per_block: int  # opt-in limit of one block
    shared_bytes_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    memory_bytes: int
    clock_mhz: float  # boost
    copy_bytes_per_s: float  # device memory, read + write
    l2_bytes_per_s: float
    fp32_flops: float  # outside the tensor cores
    fp64_flops: float  # outside the tensor cores
    bf16_flops: float  # tensor cores, fp32 accumulate; fp16 is the same
    tf32_flops: float
    fp8_flops: float  # 0: none
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    shared_bytes_reserved: int = 1024  # taken by the driver from every block
    warp: int = WARP

    @property
    def name(self) -> str:
        return f"NVIDIA {MODELED_GPUS[self.arch]}"

    @property
    def warps_per_sm(self) -> int:
        return self.threads_per_sm // self.warp

    @property
    def doubles_per_clock(self) -> float:
        """Lanes per SM that do 64-bit floating-point arithmetic: 64 of sm_90, 2 of GPUs for graphics."""
        return self.fp64_flops / 2 / self.sm_count / self.clock_mhz / 1e6

    @property
    def fp64_tensor_flops(self) -> float:
        """Twice the rate outside the tensor cores where these multiply 64-bit floats faster (datasheets)."""
        return self.fp64_flops * (2 if self.arch in (80, 90) else 1)

    @property
    def has_wgmma(self) -> bool:
        return self.arch == 90


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel fit on one SM, and the limit: registers, shared memory, threads or blocks."""

    blocks_per_sm: int
    limiter: str
    warps_per_sm: int


H200 = Target(
    arch=90, sm_count=132, shared_bytes_per_block=232448, shared_bytes_per_sm=233472,
    threads_per_sm=2048, blocks_per_sm=32,
    l2_bytes=60 << 20,  # measured
    memory_bytes=139 << 30, clock_mhz=1980.0,
    copy_bytes_per_s=4.26e12,  # measured; datasheet 4.8e12
    l2_bytes_per_s=9.0e12,  # not published; an estimate that the model scales, see model.Constants
    fp32_flops=67e12, fp64_flops=34e12,
    bf16_flops=789e12,  # measured on a vendor matmul; datasheet 989e12
    tf32_flops=395e12,  # half of the measured bf16 rate; datasheet 495e12
    fp8_flops=1578e12,  # twice the measured bf16 rate; datasheet 1979e12
)  # fmt: skip

_OTHERS = (
    Target(
        arch=80, sm_count=108, shared_bytes_per_block=166912, shared_bytes_per_sm=167936,
        threads_per_sm=2048, blocks_per_sm=32, l2_bytes=40 << 20, memory_bytes=80 << 30, clock_mhz=1410.0,
        copy_bytes_per_s=1.75e12, l2_bytes_per_s=4.4e12, fp32_flops=19.5e12, fp64_flops=9.7e12, bf16_flops=312e12,
        tf32_flops=156e12, fp8_flops=0.0,
    ),
    Target(
        arch=86, sm_count=82, shared_bytes_per_block=101376, shared_bytes_per_sm=102400,
        threads_per_sm=1536, blocks_per_sm=16, l2_bytes=6 << 20, memory_bytes=24 << 30, clock_mhz=1695.0,
        copy_bytes_per_s=0.85e12, l2_bytes_per_s=2.0e12, fp32_flops=35.6e12, fp64_flops=0.56e12, bf16_flops=71e12,
        tf32_flops=35.6e12, fp8_flops=0.0,
    ),
    Target(
        arch=89, sm_count=128, shared_bytes_per_block=101376,
        shared_bytes_per_sm=102400, threads_per_sm=1536, blocks_per_sm=24, l2_bytes=72 << 20, memory_bytes=24 << 30,
        clock_mhz=2520.0, copy_bytes_per_s=0.92e12, l2_bytes_per_s=5.0e12, fp32_flops=82.6e12, fp64_flops=1.3e12,
        bf16_flops=165e12, tf32_flops=82.6e12, fp8_flops=330e12,
    ),
    Target(
        arch=100, sm_count=148, shared_bytes_per_block=232448, shared_bytes_per_sm=233472,
        threads_per_sm=2048, blocks_per_sm=32, l2_bytes=126 << 20, memory_bytes=180 << 30, clock_mhz=1965.0,
        copy_bytes_per_s=7.0e12, l2_bytes_per_s=12.0e12, fp32_flops=75e12, fp64_flops=37e12, bf16_flops=2250e12,
        tf32_flops=1100e12, fp8_flops=4500e12,
    ),
    Target(
        arch=120, sm_count=170, shared_bytes_per_block=101376,
        shared_bytes_per_sm=102400, threads_per_sm=1536, blocks_per_sm=24, l2_bytes=96 << 20, memory_bytes=32 << 30,
        clock_mhz=2407.0, copy_bytes_per_s=1.6e12, l2_bytes_per_s=7.0e12, fp32_flops=104.8e12, fp64_flops=1.6e12,
        bf16_flops=209e12, tf32_flops=104e12, fp8_flops=419e12,
    ),
)  # fmt: skip

TARGETS: dict[int, Target] = {target.arch: target for target in (H200, *_OTHERS)}


def target_for(arch: int) -> Target:
    """The GPU for a compute capability × 10. Raises UserError if the table lacks it."""
    try:
        return TARGETS[arch]
    except KeyError:
        known = ", ".join(map(str, sorted(TARGETS)))
        raise UserError(
            f"no GPU of compute capability {arch / 10:.1f} is known; choose one of {known} or add it to "
            "evo_kernel/fitness/costmodel/targets.py"
        ) from None


def occupancy(target: Target, registers: int, shared_bytes: int, num_warps: int) -> Occupancy:
    """Blocks per SM by the rules of the CUDA occupancy calculator.

    Registers are allocated to warps in units of 256 (8 per lane), shared memory to blocks in units of 128 bytes plus
    the driver's reservation. A kernel that does not fit has 0 blocks.
    """
    warp_registers = -(-max(registers, 1) * target.warp // 256) * 256
    block_shared = -(-(shared_bytes + target.shared_bytes_reserved) // 128) * 128
    limits = {
        "threads": target.threads_per_sm // (num_warps * target.warp),
        "blocks": target.blocks_per_sm,
        "registers": (target.registers_per_sm // warp_registers) // num_warps,
        "shared memory": target.shared_bytes_per_sm // block_shared,
    }
    too_big = shared_bytes > target.shared_bytes_per_block or registers > target.registers_per_thread
    limiter = min(limits, key=lambda name: limits[name])
    blocks = 0 if too_big or num_warps * target.warp > target.threads_per_block else limits[limiter]
    return Occupancy(blocks_per_sm=blocks, limiter=limiter, warps_per_sm=blocks * num_warps)
