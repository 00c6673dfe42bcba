"""The catalogue of strategies: what macro thinking may choose, and the sign in the plan that it really happened.

A witness compares the launch plan of the parent with that of the child on the same case. It never reads the source:
a text that claims a fusion and still launches two kernels gets no credit for it. The child has been tuned since, so a
witness must survive other tile sizes: it looks at launches, scratch bytes, shapes of grids, paths, and at *ratios* of
instruction counts (a larger tile repeats loads and stores alike). Where nothing specific can be seen, the witness is
"the code changed", and its sign says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evo_kernel.types import Evaluation, PlanFeatures, Strategy
from operators.macro import strategy_witnesses
from operators.macro.strategy_witnesses import arithmetic_mix, programs, with_path

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
        "fewer loads a store, or fewer loops", strategy_witnesses.fewer_passes,
    ),
    StrategySpec(
        "multi-pass-row", "algorithm", "walk over a row in blocks, so that long rows fit",
        "fewer registers, or another ratio of loads to stores", strategy_witnesses.row_in_blocks, rewritten=False,
    ),
    StrategySpec(
        "online-row", "algorithm", "fuse two passes over a row into one that corrects itself as it goes",
        "fewer loads a store, or fewer loads", strategy_witnesses.reads_less,
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
        "one more launch, or atomics and a larger grid", strategy_witnesses.split,
    ),
    StrategySpec(
        "swizzle", "launch", "visit tiles in an order that finds operands in L2",
        "a one-dimensional grid or other index arithmetic", strategy_witnesses.index_arithmetic,
    ),
    StrategySpec(
        "hoist", "reordering", "move out of a loop what does not change in it",
        "the code changed (nothing more specific can be seen)", strategy_witnesses.changed,
    ),
    StrategySpec(
        "persistent", "launch", "as many programs as the GPU holds, each looping over tiles",
        "schedule `persistent`, or a smaller grid that is resident at once", strategy_witnesses.persistent,
        rewritten=False,
    ),
    StrategySpec(
        "drop-masks", "memory", "no bounds checks where tiles divide the shape",
        "fewer instructions, or another mix", strategy_witnesses.index_arithmetic,
    ),
    StrategySpec(
        "cache-hints", "memory", "tell the cache what will be read again",
        "the code changed: other hints, or the policies that they need", strategy_witnesses.changed,
    ),
    StrategySpec(
        "tensor-descriptor", "memory", "move tiles with the tensor memory accelerator",
        "data path `tma` where it was not", lambda old, new: with_path(new, "tma") > with_path(old, "tma"),
    ),
    StrategySpec(
        "software-pipeline", "pipeline", "load the next tile while this one is used",
        "schedule `pipelined` or data path `cp.async` where it was not, or more registers or shared memory",
        strategy_witnesses.pipelined,
    ),
    StrategySpec(
        "causal-skip", "algorithm", "never visit blocks that a causal mask hides from the whole program",
        "other index arithmetic", strategy_witnesses.index_arithmetic,
    ),
    StrategySpec(
        "exp2", "algorithm", "exponentials in base 2 with the scale folded in",
        "fewer multiplications or multiply-adds a special-function instruction",
        strategy_witnesses.cheaper_exponentials,
    ),
    StrategySpec(
        "accumulate-type", "algorithm", "another type for the accumulator, within the precision contract",
        "another arithmetic mix", lambda old, new: arithmetic_mix(old) != arithmetic_mix(new), rewritten=False,
    ),
    StrategySpec(
        "input-precision", "algorithm", "another precision for the inputs of a contraction, within the contract",
        "another tensor-core path or another arithmetic mix", strategy_witnesses.tensor_path,
    ),
    StrategySpec(
        "fuse-producer", "fusion", "take the elementwise kernel before into this one",
        "fewer launches or less scratch", strategy_witnesses.fused,
    ),
    StrategySpec(
        "fuse-consumer", "fusion", "take the elementwise kernel after into this one",
        "fewer launches or less scratch", strategy_witnesses.fused,
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
    "drop-masks": "predicates cost instructions; little where memory is what bounds",
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
    "one-pass-row": 0.2, "tile-2d": 0.3, "drop-masks": 0.01, "cache-hints": 0.0,
})  # fmt: skip
"""Strategy → log gain that is expected of it, where it is offered, before a run tells: rounded means over kernels of
torch.compile for the functions of `benchmarks/fused.py`, modeled, before tuning. The model does not see cache hints."""


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
    rows = [
        "| strategy | family | what it does | witness: the sign in the plan | offline |",
        "| --- | --- | --- | --- | --- |",
    ]
    for spec in CATALOGUE.values():
        known = "yes" if spec.rewritten else "no"
        rows.append(f"| `{spec.name}` | {spec.family} | {spec.summary} | {spec.sign} | {known} |")
    return "\n".join(rows)
