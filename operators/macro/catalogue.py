"""The catalogue of strategies: what macro thinking may pick, and the sign in the plan that it really happened.

A strategy changes the structure of a source; numbers are the tuner's. Adding one: an entry here with its witness, and
a rewrite of the same name under operators/micro/rewrites/ where the offline coder shall know it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evo_kernel.types import KernelFeatures, PlanFeatures

Witness = Callable[[PlanFeatures, PlanFeatures], bool]

FAMILIES = ("tiling", "fusion", "pipeline", "reordering", "memory", "launch", "algorithm", "repair")


@dataclass(frozen=True)
class StrategySpec:
    """One entry. `witness(parent, child)` sees the plans of the slowest search case."""

    name: str
    family: str
    summary: str
    sign: str  # what the witness looks for, for people
    witness: Witness


def _count(plan: PlanFeatures, *classes: str) -> int:
    return sum(kernel.instructions.get(name, 0) for kernel in plan.kernels for name in classes)


def _programs(plan: PlanFeatures) -> int:
    return sum(k.grid[0] * k.grid[1] * k.grid[2] for k in plan.kernels)


def _any(plan: PlanFeatures, test: Callable[[KernelFeatures], bool]) -> bool:
    return any(test(kernel) for kernel in plan.kernels)


def _changed(parent: PlanFeatures, child: PlanFeatures) -> bool:
    """The least that can be asked: other code, another grid or another number of launches."""
    left = [(k.grid, dict(k.instructions), k.registers, k.shared_bytes) for k in parent.kernels]
    right = [(k.grid, dict(k.instructions), k.registers, k.shared_bytes) for k in child.kernels]
    return left != right


def _fewer_launches(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return child.launches < parent.launches or child.scratch_bytes < parent.scratch_bytes


def _fewer_passes(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return _count(child, "loops") < _count(parent, "loops") or _changed(parent, child)


def _fewer_programs(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return _programs(child) < _programs(parent)


def _split(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return child.launches > parent.launches or _programs(child) > _programs(parent)


def _tma(parent: PlanFeatures, child: PlanFeatures) -> bool:
    del parent
    return _any(child, lambda kernel: kernel.data_path == "tma")


def _tensor_cores(parent: PlanFeatures, child: PlanFeatures) -> bool:
    rank = {"none": 0, "mma": 1, "wgmma": 2}
    return max((rank[k.tensor_core] for k in child.kernels), default=0) > max(
        (rank[k.tensor_core] for k in parent.kernels), default=0
    )


def _tensor_cores_or_code(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return _tensor_cores(parent, child) or _changed(parent, child)


def _other_launch_order(parent: PlanFeatures, child: PlanFeatures) -> bool:
    return [k.grid for k in parent.kernels] != [k.grid for k in child.kernels] or _changed(parent, child)


_SPECS = (
    StrategySpec("one-pass-row", "tiling", "hold a whole row in registers instead of looping over it",
                 "fewer loops, or other code", _fewer_passes),
    StrategySpec("multi-pass-row", "tiling", "loop over a row in blocks instead of holding it in registers",
                 "other code", _changed),
    StrategySpec("rows-per-program", "tiling", "let one program handle several rows",
                 "fewer programs", _fewer_programs),
    StrategySpec("tile-2d", "tiling", "compute a block of outputs with tl.dot instead of one row or element",
                 "fewer programs or the tensor cores",
                 lambda p, c: _fewer_programs(p, c) or _tensor_cores(p, c)),
    StrategySpec("online-row", "algorithm", "merge two passes over a row into one online pass with rescaling",
                 "fewer loops, or other code", _fewer_passes),
    StrategySpec("split-k", "algorithm", "split a contraction over programs and add the parts in a second kernel",
                 "more launches or programs", _split),
    StrategySpec("causal-skip", "algorithm", "skip key blocks that a causal mask hides", "other code", _changed),
    StrategySpec("exp2", "algorithm", "use exp2 with the scale folded in instead of exp", "other code", _changed),
    StrategySpec("accumulate-type", "algorithm", "let tl.dot add into its accumulator", "other code", _changed),
    StrategySpec("input-precision", "algorithm", "feed tl.dot the narrowest operands that the contract allows",
                 "a faster tensor-core path, or other code", _tensor_cores_or_code),
    StrategySpec("fuse-producer", "fusion", "compute an elementwise producer where its result is read",
                 "fewer launches or less scratch", _fewer_launches),
    StrategySpec("fuse-consumer", "fusion", "compute an elementwise consumer before the result is written",
                 "fewer launches or less scratch", _fewer_launches),
    StrategySpec("swizzle", "reordering", "order programs in groups so that neighbours share tiles in L2",
                 "another grid or other code", _other_launch_order),
    StrategySpec("hoist", "reordering", "move what a loop does not change out of it", "other code", _changed),
    StrategySpec("drop-masks", "memory", "load and store without masks where shapes divide", "other code", _changed),
    StrategySpec("cache-hints", "memory", "tell the caches what is read once and what again", "other code", _changed),
    StrategySpec("tensor-descriptor", "memory", "load tiles through the tensor memory accelerator",
                 "bulk tensor copies", _tma),
    StrategySpec("persistent", "launch", "as many programs as the GPU holds, each taking several tiles",
                 "fewer programs", _fewer_programs),
    StrategySpec("software-pipeline", "pipeline", "overlap the next loads with the present work",
                 "other code", _changed),
)  # fmt: skip

CATALOGUE: dict[str, StrategySpec] = {spec.name: spec for spec in _SPECS}


def witnessed(strategy: str, parent: PlanFeatures | None, child: PlanFeatures | None) -> bool:
    """Whether the child's plan shows the strategy's sign. False where there is nothing to look at."""
    spec = CATALOGUE.get(strategy)
    if spec is None or parent is None or child is None:
        return False
    return spec.witness(parent, child)


def markdown_table() -> str:
    """The catalogue for docs/strategies.md."""
    rows = [f"| `{s.name}` | {s.family} | {s.summary} | {s.sign} |" for s in _SPECS]
    return "\n".join(["| strategy | family | what it does | witness |", "| --- | --- | --- | --- |", *rows])
