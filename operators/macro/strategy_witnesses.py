"""The signs by which a strategy shows in a launch plan: predicates of the catalogue.

Each takes the features of the parent's plan and of the child's plan for the same case. Instruction classes are those
of the machine-code reader (`ld.global`, `cp.async`, `tma.load`, `st.global`, `mufu`, `fma`, `fmul`, `int`, ...).
"""

from __future__ import annotations

import math

from evo_kernel.types import KernelFeatures, PlanFeatures

LOADS = ("ld.global", "cp.async", "tma.load")
STORES = ("st.global", "tma.store", "atomic")
ARITHMETIC = ("fma", "fmul", "fadd", "mma", "wgmma", "tcgen05", "convert")
INDEXING = ("int", "int.uniform", "move")
MULTIPROCESSORS = 132  # of an H200; fewer on its smaller relatives
RESIDENT_PROGRAMS = 32  # thread blocks that one multiprocessor of sm_90 holds at most (CUDA programming guide)
MARGIN = 0.98  # a ratio must fall by more than this to count as less: code generators shuffle a few instructions


def changed(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """The least that can be asked: something in the compiled plan is different."""
    return _shape(parent) != _shape(child)


def fused(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return (_nodes(child), child.scratch_bytes) < (_nodes(parent), parent.scratch_bytes)


def reads_less(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """Fewer loads a store; where nothing is stored that could be compared, fewer loads."""
    return _loads_per_store(child) < _loads_per_store(parent) * MARGIN


def fewer_passes(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """A row held in registers is walked over by fewer loops; its loads are unrolled and say nothing."""
    return reads_less(parent, child) or count(child, "loops") < count(parent, "loops")


def row_in_blocks(parent: PlanFeatures, child: PlanFeatures) -> bool:
    fewer_registers = most(child, "registers") < most(parent, "registers")
    return fewer_registers or _loads_per_store(child) * MARGIN > _loads_per_store(parent)


def split(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """A launch that adds the parts up; or, with atomics for that, a larger grid."""
    atomics = count(child, "atomic") > count(parent, "atomic")
    return child.launches > parent.launches or (atomics and max(programs(child)) > max(programs(parent)))


def index_arithmetic(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """Another rank of grid, or another share of index and predicate arithmetic."""
    if [_rank(kernel) for kernel in parent.kernels] != [_rank(kernel) for kernel in child.kernels]:
        return True
    return not math.isclose(_share(parent, *INDEXING), _share(child, *INDEXING), rel_tol=1e-6)


def persistent(parent: PlanFeatures, child: PlanFeatures) -> bool:
    if count_schedule(child, "persistent") > count_schedule(parent, "persistent"):
        return True
    before, after = (sorted(programs(plan), reverse=True) for plan in (parent, child))
    resident, pairs = MULTIPROCESSORS * RESIDENT_PROGRAMS, zip(before, after, strict=False)
    return len(before) == len(after) and any(new < old and new <= resident for old, new in pairs)


def pipelined(parent: PlanFeatures, child: PlanFeatures) -> bool:
    overlapped = count_schedule(child, "pipelined") > count_schedule(parent, "pipelined")
    asynchronous = any(with_path(child, path) > with_path(parent, path) for path in ("cp.async", "tma"))
    held = most(child, "registers") > most(parent, "registers")
    shared = most(child, "shared_bytes") > most(parent, "shared_bytes")
    return overlapped or asynchronous or held or shared


def cheaper_exponentials(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """`exp(x)` compiles to a multiplication by log2(e) and `ex2`; folded into a scale, the multiplication goes."""
    if not count(child, "mufu"):
        return False
    before = count(parent, "fmul", "fma") / max(count(parent, "mufu"), 1)
    return count(child, "fmul", "fma") / count(child, "mufu") < before


def tensor_path(parent: PlanFeatures, child: PlanFeatures) -> bool:
    paths = [sorted(kernel.tensor_core for kernel in plan.kernels) for plan in (parent, child)]
    return paths[0] != paths[1] or arithmetic_mix(parent) != arithmetic_mix(child)


# -- reading features ----------------------------------------------------------------------------------------------


def count(plan: PlanFeatures, *classes: str) -> int:
    """Static instructions of these classes over all kernels."""
    return sum(kernel.instructions.get(name, 0) for kernel in plan.kernels for name in classes)


def count_schedule(plan: PlanFeatures, schedule: str) -> int:
    return sum(kernel.schedule == schedule for kernel in plan.kernels)


def _shape(plan: PlanFeatures) -> tuple[object, ...]:
    """All but names and shares of time."""
    kernels = [
        (k.grid, k.num_warps, k.registers, k.spill_bytes, k.shared_bytes, dict(k.instructions)) for k in plan.kernels
    ]
    return plan.launches, plan.aten_nodes, plan.scratch_bytes, kernels


def _nodes(plan: PlanFeatures) -> int:
    return plan.launches + plan.aten_nodes


def most(plan: PlanFeatures, name: str) -> int:
    """The largest of a feature over all kernels."""
    return max((getattr(kernel, name) for kernel in plan.kernels), default=0)


def programs(plan: PlanFeatures) -> list[int]:
    return [math.prod(kernel.grid) for kernel in plan.kernels]


def _loads_per_store(plan: PlanFeatures) -> float:
    return count(plan, *LOADS) / max(count(plan, *STORES), 1)


def _share(plan: PlanFeatures, *classes: str) -> float:
    return count(plan, *classes) / max(count(plan, "all"), 1)


def arithmetic_mix(plan: PlanFeatures) -> tuple[float, ...]:
    """Shares of the arithmetic classes among arithmetic: unmoved by unrolling."""
    every = max(count(plan, *ARITHMETIC), 1)
    return tuple(round(count(plan, name) / every, 3) for name in ARITHMETIC)


def _rank(kernel: KernelFeatures) -> int:
    return sum(extent > 1 for extent in kernel.grid)


def with_path(plan: PlanFeatures, path: str) -> int:
    return sum(kernel.data_path == path for kernel in plan.kernels)
