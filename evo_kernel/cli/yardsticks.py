"""What times are held against: baselines, and what the machine reaches at most."""

from __future__ import annotations

from collections.abc import Mapping

from evo_kernel.observe.words import fault_lines
from evo_kernel.types import Environment


def baselines_text(times: Mapping[str, float]) -> str:
    """The fastest first: it is the denominator."""
    ranked = sorted(times.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {us:.1f} µs" + " (denominator)" * (n == 0) for n, (name, us) in enumerate(ranked))


def ceilings_line(environment: Environment, stored: Mapping[str, float]) -> str:
    """What shares of the speed of light refer to."""
    from evo_kernel.fitness.ceilings import Ceilings
    from evo_kernel.fitness.targets import target_for

    if measured := Ceilings.from_data(stored):
        return f"{measured.text}, measured ({environment.device})"
    arch = environment.device.removeprefix("sm_")
    if environment.kind == "measured" or not arch.isdecimal():
        return f"not measured yet ({environment.device})"
    return f"{Ceilings.of_target(target_for(int(arch))).text}, from the table ({environment.device})"


def held_lines(
    environment: Environment | None, faults: Mapping[str, Mapping[str, str]], ceilings: Mapping[str, float]
) -> list[str]:
    """What times are held against, beside the baselines."""
    return [*fault_lines(faults), f"ceilings: {ceilings_line(environment, ceilings)}"] if environment else []
