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
    """What shares of the speed of light refer to."""
    from evo_kernel.fitness.timing.ceilings import Ceilings

    if measured := Ceilings.from_data(stored):
        return f"{measured.text}, measured ({environment.device})"
    table = Ceilings.from_data(_limits(environment, stored))
    told = f"{table.text}, from the table" if table else "not measured yet"
    return f"{told} ({environment.device})"


def _limits(environment: Environment, stored: Mapping[str, float]) -> Mapping[str, float]:
    """Ceilings by name: as they were measured, else of the table where times are modeled, else none."""
    from evo_kernel.fitness.costmodel.targets import target_for
    from evo_kernel.fitness.timing.ceilings import Ceilings

    arch = environment.device.removeprefix("sm_")
    if Ceilings.from_data(stored):
        return stored
    if environment.kind == "measured" or not arch.isdecimal():
        return {}
    return Ceilings.of_target(target_for(int(arch))).as_data()


def held_lines(
    environment: Environment | None, faults: Mapping[str, Mapping[str, str]], ceilings: Mapping[str, float]
) -> list[str]:
    """What times are held against, beside the baselines."""
    return [*fault_lines(faults), f"ceilings: {ceilings_line(environment, ceilings)}"] if environment else []
