"""What a launch of real size moves and computes, from a sample of its programs. The sampler is
sampling.py, which needs Triton's interpreter; who only reads the results does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LINE_BYTES, SECTOR_BYTES = 128, 32
WAVE_PROGRAMS = 264
"""Programs that are taken to run at the same time: two on each SM of an H200."""


@dataclass(frozen=True)
class LaunchTraffic:
    """One launch. Counts are means over the sampled programs, for one program, unless their name says otherwise."""

    programs: int  # of the whole launch
    sampled: int
    load_bytes: float  # asked for
    store_bytes: float
    load_sector_bytes: float  # of the 32-byte sectors that each access touches: what L1 asks of L2
    store_sector_bytes: float
    atomic_elements: float
    wave_load_bytes: float  # of different 128-byte lines, by WAVE_PROGRAMS consecutive programs together
    grid_load_bytes: float  # the same, by the whole launch
    grid_store_bytes: float
    rounds: float  # loads that wait for each other: loop iterations with loads, and straight-line code as one
    iterations: float  # of all loops together
    imbalance: float  # work of the busiest sampled program ÷ mean
    flops: Mapping[str, float] = field(default_factory=dict)  # of tl.dot, by operand kind: bf16, fp16, tf32, fp32, ...
    elements: Mapping[str, float] = field(
        default_factory=dict
    )  # elementwise operations by class: fp, mufu, int, reduce
    complete: bool = True  # False: a program was cut short because it did too much


def total_flops(traffic: Sequence[LaunchTraffic]) -> float:
    """Of tl.dot, over all launches."""
    return sum(launch.programs * sum(launch.flops.values()) for launch in traffic)
