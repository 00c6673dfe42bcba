"""Software pipelining: loads of later iterations start before the present one is computed."""

from __future__ import annotations

import ast
import re

from operators.micro.kernels import Loop, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import GridRewrite, contracts
from operators.micro.syntax import called, fresh_name, spell

CONTRACTION_STAGES = 4  # the launch default is 3, for loops with dots only
ROW_STAGES = 2


class SoftwarePipeline(GridRewrite):
    """Innermost loops that load become `tl.range(..., num_stages=STAGES)`: the compiler prefetches with cp.async."""

    name, family, lacks = "software-pipeline", "pipeline", "has no innermost `range` loop that loads"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Loop]:
        return _loops(kernel) if module.launches_of(kernel.name) else []

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: list[Loop]) -> str:
        knob = fresh_name("STAGES", module.names | kernel.names)
        edits = [module.replace(loop.node.iter, _staged(loop, knob)) for loop in found]
        edits.append(module.add_parameters(kernel.node, f"{knob}: tl.constexpr"))
        edits += [module.add_arguments(launch.call, f"{knob}={knob}") for launch in module.launches_of(kernel.name)]
        first = CONTRACTION_STAGES if contracts(kernel) else ROW_STAGES
        return module.edited(edits, module.set_constant(knob, first))


def _loops(kernel: SourceKernel) -> list[Loop]:
    """Innermost `range` loops that load from memory through pointers or descriptors."""
    outer = {id(node) for loop in kernel.loops for node in loop.outer}
    found = [loop for loop in kernel.loops if loop.function == "range" and id(loop.node) not in outer]
    return [loop for loop in found if _loads(loop)]


def _loads(loop: Loop) -> bool:
    calls = [part for part in ast.walk(loop.node) if isinstance(part, ast.Call)]
    return any(called(call) == "tl.load" or re.search(r"_desc(_\d+)?\.load$", called(call)) for call in calls)


def _staged(loop: Loop, knob: str) -> str:
    assert isinstance(loop.node.iter, ast.Call)
    bounds = ", ".join(spell(bound) for bound in loop.node.iter.args)
    return f"tl.range({bounds}, num_stages={knob})"
