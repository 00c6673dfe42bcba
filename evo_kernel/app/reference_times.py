"""What times are held against: baselines, and what the machine reaches at most."""

from __future__ import annotations

from collections.abc import Mapping

from evo_kernel.observe.formatting import fault_lines
from evo_kernel.types import Environment


def baselines_text(times: Mapping[str, float]) -> str:
    """The fastest first: it is the denominator."""
    ranked = sorted(times.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {us:.1f} µs" + " (denominator)" * (n == 0) for n, (name, us) in enumerate(ranked))


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
