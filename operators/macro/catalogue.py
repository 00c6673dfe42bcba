"""The catalogue of strategies: what macro thinking may choose, and the sign in the plan that it really happened.

A witness compares the launch plan of the parent with that of the child on the same case. It never reads the source:
a text that claims a fusion and still launches two kernels gets no credit for it. The child has been tuned since, so a
witness must survive other tile sizes: it looks at launches, scratch bytes, shapes of grids, paths, and at *ratios* of
instruction counts (a larger tile repeats loads and stores alike). Where nothing specific can be seen, the witness is
"the code changed", and its sign says so.

Each takes the features of the parent's plan and of the child's plan for the same case. Instruction classes are those
of the machine-code reader (`ld.global`, `cp.async`, `tma.load`, `st.global`, `mufu`, `fma`, `fmul`, `int`, ...).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evo_kernel.types import Evaluation, KernelFeatures, PlanFeatures, Strategy

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


FAMILIES = ("tiling", "fusion", "pipeline", "reordering", "memory", "launch", "algorithm", "repair")
OTHER = "other"
"""What an edit without a witness counts as; also the place of names that the catalogue does not know."""

MAX_DESCRIPTION = 400  # characters
_NAME = re.compile(r"(?=.{2,40}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")

Witness = Callable[[PlanFeatures, PlanFeatures], bool]


@dataclass(frozen=True)
class StrategySpec:
    """One kind of structural change. `sign` is the witness in words."""

    name: str
    family: str
    summary: str
    sign: str
    witness: Witness
    rewritten: bool = True  # whether the offline rewriter knows it


_SPECS = (
    StrategySpec(
        "one-pass-row", "algorithm", "hold a whole row in registers and read it once",
        "fewer loads a store, or fewer loops", fewer_passes,
    ),
    StrategySpec(
        "multi-pass-row", "algorithm", "walk over a row in blocks, so that long rows fit",
        "fewer registers, or another ratio of loads to stores", row_in_blocks, rewritten=False,
    ),
    StrategySpec(
        "online-row", "algorithm", "fuse two passes over a row into one that corrects itself as it goes",
        "fewer loads a store, or fewer loads", reads_less,
    ),
    StrategySpec(
        "rows-per-program", "tiling", "several rows a program",
        "a smaller grid", lambda old, new: new.launches <= old.launches and sum(programs(new)) < sum(programs(old)),
    ),
    StrategySpec(
        "tile-2d", "tiling", "tiles in two dimensions instead of one",
        "a grid of another size or rank",
        lambda old, new: [k.grid for k in old.kernels] != [k.grid for k in new.kernels],
    ),
    StrategySpec(
        "split-k", "tiling", "share a contraction's loop among programs and add the parts up",
        "one more launch, or atomics and a larger grid", split,
    ),
    StrategySpec(
        "swizzle", "launch", "visit tiles in an order that finds operands in L2",
        "a one-dimensional grid or other index arithmetic", index_arithmetic,
    ),
    StrategySpec(
        "hoist", "reordering", "move out of a loop what does not change in it",
        "the code changed (nothing more specific can be seen)", changed,
    ),
    StrategySpec(
        "persistent", "launch", "as many programs as the GPU holds, each looping over tiles",
        "schedule `persistent`, or a smaller grid that is resident at once", persistent,
    ),
    StrategySpec(
        "launch-options", "launch", "warps a program, or a cap on registers a thread, as knobs of the launch",
        "the code changed (nothing more specific can be seen)", changed,
    ),
    StrategySpec(
        "drop-masks", "memory", "no bounds checks where tiles divide the shape; divisors of indices as constants",
        "fewer instructions, or another mix", index_arithmetic,
    ),
    StrategySpec(
        "cache-hints", "memory", "tell the cache what will be read again",
        "the code changed: other hints, or the policies that they need", changed,
    ),
    StrategySpec(
        "tensor-descriptor", "memory", "move tiles with the tensor memory accelerator",
        "data path `tma` where it was not", lambda old, new: with_path(new, "tma") > with_path(old, "tma"),
    ),
    StrategySpec(
        "software-pipeline", "pipeline", "load the next tile while this one is used",
        "schedule `pipelined` or data path `cp.async` where it was not, or more registers or shared memory",
        pipelined,
    ),
    StrategySpec(
        "causal-skip", "algorithm", "never visit blocks that a causal mask hides from the whole program",
        "other index arithmetic", index_arithmetic,
    ),
    StrategySpec(
        "exp2", "algorithm", "exponentials in base 2 with the scale folded in",
        "fewer multiplications or multiply-adds a special-function instruction",
        cheaper_exponentials,
    ),
    StrategySpec(
        "accumulate-type", "algorithm", "another type for the accumulator, within the precision contract",
        "another arithmetic mix", lambda old, new: arithmetic_mix(old) != arithmetic_mix(new), rewritten=False,
    ),
    StrategySpec(
        "input-precision", "algorithm", "another precision for the inputs of a contraction, within the contract",
        "another tensor-core path or another arithmetic mix", tensor_path,
    ),
    StrategySpec(
        "fuse-producer", "fusion", "take the elementwise kernel before into this one",
        "fewer launches or less scratch", fused,
    ),
    StrategySpec(
        "fuse-consumer", "fusion", "take the elementwise kernel after into this one",
        "fewer launches or less scratch", fused,
    ),
    StrategySpec(
        "stop", "repair", "leave the source as it is: the last step of a walk of several",
        "none: it changes nothing", lambda old, new: False, rewritten=False,
    ),
)  # fmt: skip

CATALOGUE: Mapping[str, StrategySpec] = MappingProxyType({spec.name: spec for spec in _SPECS})
STOP = Strategy("stop", CATALOGUE["stop"].family)
PAYS: Mapping[str, str] = MappingProxyType({
    "one-pass-row": "a row is read more than once and fits (up to about 16,384 fp32 elements)",
    "multi-pass-row": "rows spill, or are longer than about 16,384 fp32 elements",
    "online-row": "a later pass needs what an earlier one found, and the row is too long to hold",
    "rows-per-program": "rows have a few hundred elements; not thousands",
    "tile-2d": "accesses along the other axis are strided, or neighbours read the same data",
    "split-k": "there are fewer output tiles than the 132 multiprocessors, and the loop is long",
    "swizzle": "operands are larger than the L2 (50 MB); nothing where they fit",
    "hoist": "a loop repeats loads or scales every term; plain arithmetic is moved by the compiler anyway",
    "persistent": "tiles are short and many more than multiprocessors",
    "launch-options": "rows or tiles are larger or smaller than 4 warps hold well, or registers keep programs waiting",
    "drop-masks": "predicates or divisions of indices cost instructions; little where memory is what bounds",
    "cache-hints": "a stream evicts what is read again; nothing where all fits into L2, or all is read once",
    "tensor-descriptor": "two-dimensional tiles have strides of whole 16 bytes",
    "software-pipeline": "a loop waits for loads and few programs hide that",
    "causal-skip": "a mask hides whole blocks: about half of the work",
    "exp2": "exponentials are scaled anyway; little where memory is what bounds",
    "accumulate-type": "sums are wider than the contract needs, or converted in the loop",
    "input-precision": "fp32 products are multiplied without tensor cores (`ieee`); nothing where operands are half",
    "fuse-producer": "each element of the buffer is read few times",
    "fuse-consumer": "it reads the buffer at the same indices",
})  # fmt: skip
"""Strategy → where it pays, or does not: the heart of its guide, for those who choose."""

USUAL_GAINS: Mapping[str, float] = MappingProxyType({
    "one-pass-row": 0.2, "tile-2d": 0.3, "drop-masks": 0.01, "cache-hints": 0.0, "online-row": 0.15, "hoist": 0.03,
    "persistent": 0.03, "software-pipeline": 0.01, "launch-options": 0.0,
})  # fmt: skip
"""Strategy → log gain that is expected of it, where it is offered, before a run tells: rounded means. The first four
are of kernels of torch.compile for the functions of `benchmarks/fused.py`, modeled, before tuning (the model sees no
cache hints); `launch-options` of six steps in searches for these functions; the others of the shipped tree (H200)."""


def usual_gains(offered: Iterable[Strategy]) -> dict[str, float]:
    """The same by key, of those offered."""
    return {one.key: USUAL_GAINS[one.name] for one in offered if one.name in USUAL_GAINS}


DESCRIPTION = "description"
"""The parameter in which a strategy outside the catalogue says in words what it does."""


def proposed(name: str, family: str, description: str, region: str = "") -> Strategy:
    """A strategy that a policy made up: stored like any other, known by its name and its words.

    Raises ValueError when the name is the catalogue's or no short lower-case word, or the family is unknown.
    """
    if not _NAME.fullmatch(name) or name in (*CATALOGUE, OTHER, UNGUIDED.name):
        raise ValueError(f"a new strategy needs a new name in lower case with hyphens, at most 40 long, not {name!r}")
    words = " ".join(description.split())
    if family not in FAMILIES or not words:
        raise ValueError(f"a new strategy needs a description and one of the families {', '.join(FAMILIES)}")
    return Strategy(name, family, " ".join(region.split())[:80], ((DESCRIPTION, words[:MAX_DESCRIPTION]),))


UNGUIDED = Strategy(
    "as-you-see-fit",
    "algorithm",
    parameters=((DESCRIPTION, "whatever makes the kernel faster: the one who writes it chooses"),),
)
"""The only offer where there is no hierarchy: who writes the code also decides what to change."""


def description(strategy: Strategy) -> str:
    """What it does, in words: the catalogue's, or its own; its name where there are none."""
    spec = CATALOGUE.get(strategy.name)
    return spec.summary if spec else str(dict(strategy.parameters).get(DESCRIPTION, strategy.name))


def witnessed(strategy: Strategy | None, parent: Evaluation | None, child: Evaluation) -> bool:
    """Whether the child's plan shows the sign of `strategy` against the parent's on any case that both were timed on.

    False when either was not timed, where the plans are the same, and for names outside the catalogue.
    """
    if parent is None or not parent.passed or not child.passed:
        return False
    before, after = (
        {one.case: (one.plan, one.features) for one in evaluation.measurements} for evaluation in (parent, child)
    )
    return shows(strategy, before, after)


def shows(
    strategy: Strategy | None,
    parent: Mapping[str, tuple[str, PlanFeatures | None]],
    child: Mapping[str, tuple[str, PlanFeatures | None]],
) -> bool:
    """Whether plans show the sign of `strategy` on any case that both have: by case, a plan's hash and features.

    One case is enough: masks can be dropped, and a row held in registers, where the shape allows it and nowhere else.
    """
    spec = CATALOGUE.get(strategy.name) if strategy else None
    if spec is None:
        return False
    pairs = [(parent[case], after) for case, after in child.items() if case in parent]
    return any(
        old != new and before is not None and after is not None and spec.witness(before, after)
        for (old, before), (new, after) in pairs
    )


def table() -> str:
    rows = ["| strategy | family | what it does | witness: the sign in the plan | offline |", "| --- " * 5 + "|"]
    for spec in CATALOGUE.values():
        known = "yes" if spec.rewritten else "no"
        rows.append(f"| `{spec.name}` | {spec.family} | {spec.summary} | {spec.sign} | {known} |")
    return "\n".join(rows)
