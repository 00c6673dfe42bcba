"""What a launch of real size moves and computes, counted over its programs by partial.py.

Who only reads the results needs neither torch nor the executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

LINE_BYTES, SECTOR_BYTES = 128, 32
WAVE_PROGRAMS = 264
"""Programs that are taken to run at the same time: two on each SM of an H200."""
Amount = Annotated[float, Field(ge=0, le=1e24, strict=True)]
Number = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]


@dataclass(frozen=True)
class LaunchTraffic:
    """One launch. Counts are means over the counted programs, for one program, unless their name says otherwise."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    programs: Number  # of the whole launch
    sampled: Number  # programs that were counted
    load_bytes: Amount  # asked for
    store_bytes: Amount
    load_sector_bytes: Amount  # of the 32-byte sectors that each access touches: what L1 asks of L2
    store_sector_bytes: Amount
    atomic_elements: Amount
    wave_load_bytes: Amount  # of different 128-byte lines, by WAVE_PROGRAMS consecutive programs together
    grid_load_bytes: Amount  # the same, by the whole launch
    grid_store_bytes: Amount
    rounds: Amount  # loads that wait for each other: loop iterations with loads, and straight-line code as one
    iterations: Amount  # of all loops together
    imbalance: Amount  # work of the busiest counted program ÷ mean
    flops: Mapping[str, Amount] = field(default_factory=dict)  # of tl.dot, by operand kind: bf16, fp16, tf32, fp32, ...
    elements: Mapping[str, Amount] = field(
        default_factory=dict
    )  # elementwise operations by class: fp, mufu, int, reduce
    complete: bool = True  # False: a program was cut short because it did too much


def total_flops(traffic: Sequence[LaunchTraffic]) -> float:
    """Of tl.dot, over all launches."""
    return sum(launch.programs * sum(launch.flops.values()) for launch in traffic)


def read_traffic(told: Any) -> tuple[LaunchTraffic, ...]:
    """What a child says that it counted: finite, and not negative. Raises ValueError."""
    return TypeAdapter(tuple[LaunchTraffic, ...]).validate_python(told)
