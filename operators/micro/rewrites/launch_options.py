"""`launch-options`: what a launch leaves to Triton, or computes from sizes, becomes a knob that the tuner sets.

Warps a program decide how many elements a thread holds; a cap on registers a thread decides how many programs are
resident at once. Neither changes what a kernel computes.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from evo_kernel.types import TaskCard
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.grids import contracts
from operators.micro.syntax import called
from operators.micro.text import Edit

WARPS, REGISTERS = "warps", "registers"
_OPTIONS = {WARPS: ("num_warps", "NUM_WARPS", 8), REGISTERS: ("maxnreg", "MAX_REGISTERS", 64)}
"""What Triton calls it; what the knob's name ends with; where the search starts, not at Triton's own 4, and no cap."""
PRODUCT_REGISTERS = 168
"""Where the search starts with products: with less than the 154 that one wgmma of 64 × 256 needs, none compiles."""


class LaunchOptions(Rewrite):
    name, family, form = "launch-options", "launch", "option"
    lacks = "has that option as a knob already, or leaves it to a decorator"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        return (WARPS, REGISTERS)

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        launches = module.launches_of(kernel.name)
        if form not in _OPTIONS or _decides(kernel) or _spreads(launches):
            return []
        option, ending, first = _OPTIONS[form]
        if form == REGISTERS and any(map(contracts, module.kernels.values())):
            first = PRODUCT_REGISTERS
        given = [launch.options.get(option) for launch in launches]
        knobs = any(isinstance(value, ast.Name) and value.id in module.constants for value in given)
        if knobs or option in {parameter.name for parameter in kernel.parameters}:
            return []
        knob = module.fresh(f"{kernel.name.removesuffix('_kernel').strip('_').upper()}_{ending}")
        edits = [
            module.add_arguments(launch.call, f"{option}={knob}") if value is None else module.replace(value, knob)
            for launch, value in zip(launches, given, strict=True)
        ]
        return [*edits, module.set_constant(knob, first)] if edits else []


def _decides(kernel: SourceKernel) -> bool:
    """Whether a decorator is given something, which may be a launch's options: configurations, rules."""
    others = [one for one in kernel.node.decorator_list if called(one).split(".")[-1] != "jit"]
    return any(isinstance(one, ast.Call) and (one.args or one.keywords) for one in others)


def _spreads(launches: Sequence[SourceLaunch]) -> bool:
    """Whether a launch passes `**options`, which may hold any."""
    return any(keyword.arg is None for launch in launches for keyword in launch.call.keywords)
