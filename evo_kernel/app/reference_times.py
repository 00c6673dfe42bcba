"""What times are held against: baselines, and what the machine reaches at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evo_kernel.observe.formatting import fault_lines
from evo_kernel.types import Environment

if TYPE_CHECKING:
    from populations.views import RunStatus


def times_text(status: RunStatus, case: str) -> str:
    """The leader's time on a case, baselines (the fastest first: it is the denominator) and the floor."""
    ranked = sorted(status.baselines.get(case, {}).items(), key=lambda item: item[1])
    told = [f"{name} {us:.1f} µs" + " (denominator)" * (n == 0) for n, (name, us) in enumerate(ranked)]
    if (found := status.times.get(case)) is not None and status.leader is not None:
        told.insert(0, f"candidate {status.leader.candidate} {found.us:.1f} µs")
        if found.floor_us is not None:
            told.append(f"floor {found.floor_us:.1f} µs ({found.light_share:.0%} of the speed of light)")
    return ", ".join(told)


def ceilings_line(environment: Environment, stored: Mapping[str, float]) -> str:
    """What shares of the speed of light refer to: as it was measured, else of the table where times are modeled."""
    from evo_kernel.fitness.costmodel.targets import target_for
    from evo_kernel.fitness.timing.ceilings import Ceilings

    told, arch = "not measured yet", environment.device.removeprefix("sm_")
    if measured := Ceilings.from_data(stored):
        told = f"{measured.text}, measured"
    elif environment.kind == "modeled" and arch.isdecimal():
        told = f"{Ceilings.of_target(target_for(int(arch))).text}, from the table"
    return f"{told} ({environment.device})"


def held_lines(
    environment: Environment | None, faults: Mapping[str, Mapping[str, str]], ceilings: Mapping[str, float]
) -> list[str]:
    """What times are held against, beside the baselines."""
    return [*fault_lines(faults), f"ceilings: {ceilings_line(environment, ceilings)}"] if environment else []
