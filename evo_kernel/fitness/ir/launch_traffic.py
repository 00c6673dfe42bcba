"""`LaunchTraffic`: counts of what a launch of real size moves and computes; see partial.py for the counting.

Importing this module needs neither torch nor the executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import ConfigDict, Field

LINE_BYTES, SECTOR_BYTES = 128, 32
WAVE_PROGRAMS = 264
"""Programs assumed to run at the same time: two on each SM of an H200."""
Amount = Annotated[float, Field(ge=0, le=1e24, strict=True)]
Number = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]


@dataclass(frozen=True)
class ProgramWork:
    """Work of a single program, which others may not have."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    rounds: Amount  # as in `LaunchTraffic`
    iterations: Mapping[str, Amount]  # of each loop, by name
    flops: Mapping[str, Amount]  # of tl.dot, by operand kind
    waiting_rounds: Amount = 0.0  # as of `LaunchTraffic`
    library: Mapping[str, Amount] = field(default_factory=dict)  # as of `LaunchTraffic`
    moved_bytes: Amount = 0.0  # loaded and stored; missing in calibration data


@dataclass(frozen=True)
class TorchWork:
    """Work of a torch operation that depends on the numbers in its tensors."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    instructions: Amount = 0.0  # of threads in loops, see library_loops.py
    crowd: Amount = 0.0  # atomic updates of the address that most are of


def work_of(amounts: Mapping[str, float]) -> ProgramWork:
    """`amounts`: by the names of `Counter.by_program`."""
    return ProgramWork(
        rounds=max(amounts.get("rounds", 0.0), amounts.get("waiting_rounds", 0.0)),
        waiting_rounds=amounts.get("waiting_rounds", 0.0),
        iterations={n.split(".")[1]: amount for n, amount in amounts.items() if n.startswith("loop.")},
        flops={n[6:]: amount for n, amount in amounts.items() if n.startswith("flops.")},
        library={n[8:]: amount for n, amount in amounts.items() if n.startswith("library.")},
        moved_bytes=amounts.get("load_bytes", 0.0) + amounts.get("store_bytes", 0.0),
    )


@dataclass(frozen=True)
class LaunchTraffic:
    """Traffic of one launch.

    Counts are means per program over the counted programs, unless the name tells otherwise.
    """

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    programs: Number  # of the whole launch
    sampled: Number  # programs that were counted
    load_bytes: Amount  # requested
    store_bytes: Amount
    load_sector_bytes: Amount  # of the 32-byte sectors of each access: requests from L1 to L2
    store_sector_bytes: Amount
    atomic_elements: Amount
    wave_load_bytes: Amount  # of distinct 128-byte lines, by WAVE_PROGRAMS consecutive programs together
    grid_load_bytes: Amount  # of distinct lines, by the whole launch
    grid_store_bytes: Amount
    rounds: Amount  # of dependent loads, see rounds.py
    iterations: Amount  # of all loops together
    imbalance: Amount  # work of the busiest counted program ÷ mean
    flops: Mapping[str, Amount] = field(default_factory=dict)  # of tl.dot, by operand kind: bf16, fp16, tf32, fp32, ...
    elements: Mapping[str, Amount] = field(
        default_factory=dict
    )  # elementwise operations by class: fp, mufu, int, reduce
    loops: Mapping[str, Amount] = field(
        default_factory=dict
    )  # iterations, by name, or calls of a function; empty in calibration data of before
    few_load_bytes: Amount = 0.0  # of different lines, by a few random programs together
    few_store_bytes: Amount = 0.0
    waiting_rounds: Amount = 0.0  # rounds without prefetching; missing in old calibration data
    rereads: tuple[
        Amount, ...
    ] = ()  # of a program's lines, see footprints.reuse_of; empty too where any L2 holds all lines
    restores: tuple[Amount, ...] = ()  # as `rereads`, of lines that a program stores again
    new_rounds: Amount | None = (
        None  # share of rounds with lines that the program reads first; missing in calibration data
    )
    own_load_bytes: Amount = 0.0  # of grid_load_bytes, lines that their program alone has stored before
    library: Mapping[str, Amount] = field(
        default_factory=dict
    )  # instructions of a warp in loops of library functions, for 32 elements, by the elements of their tensors
    store_lines: Amount = 0.0  # that each warp asks for, of stores and atomic operations; missing in old data
    distinct_load_bytes: Amount | None = None  # requested, but once for all lanes of an access; likewise
    crowd: Amount = 0.0  # atomic requests of the line that most are of, by the whole launch; missing in old data
    latencies: Amount | None = (
        None  # of memory, of the program that waits most for copies into shared memory: waits that cannot overlap
    )
    busiest: tuple[ProgramWork, ...] = ()  # programs with the maximum of some count


EXECUTED_SLACK, LINES_SLACK = 1.05, 1.25
"""Executed amounts may exceed counted ones by this factor, because samples of programs differ slightly; for shared
lines they differ more."""


def at_least(counted: LaunchTraffic, executed: Mapping[str, float]) -> LaunchTraffic:
    """Traffic of a launch, raised to what its programs did when executed on random inputs.

    While traffic is counted, a kernel may know inputs, seeds and programs, and floating-point data is missing; in
    execution it knows nothing. `executed`: means over all programs of the counts of `Counter` and
    `count_launch.touched`.
    """
    wave, whole = min(counted.programs, WAVE_PROGRAMS), counted.programs
    flops = {name[6:]: amount for name, amount in executed.items() if name.startswith("flops.")}
    library = {name[8:]: amount for name, amount in executed.items() if name.startswith("library.")}
    loops = {name.split(".")[1]: amount for name, amount in executed.items() if name.startswith("loop.")}

    def raised_by(name: str, fields: Mapping[str, int]) -> dict[str, float]:
        """Fields, with the numbers of programs that they are of, by the share of the first one."""
        share = _share(executed.get(name, 0.0), getattr(counted, next(iter(fields))))
        return {field: _raised(getattr(counted, field), share, programs) for field, programs in fields.items()}

    distinct = {} if counted.distinct_load_bytes is None else {"distinct_load_bytes": 1}
    raised = replace(
        counted,
        **raised_by("load_bytes", {"load_bytes": 1, "load_sector_bytes": 1, "wave_load_bytes": wave,
                                   "grid_load_bytes": whole} | distinct),
        **raised_by("store_bytes", {"store_bytes": 1, "store_sector_bytes": 1, "grid_store_bytes": whole}),
        **raised_by("iterations", {"iterations": 1}),
        **raised_by("rounds", {"rounds": 1}),
        **raised_by("waiting_rounds", {"waiting_rounds": 1}),
        **raised_by("atomic", {"atomic_elements": 1}),
        flops=dict(counted.flops) | _each_at_least(counted.flops, flops, flops),
        library=_each_at_least(counted.library, library, sorted(counted.library.keys() | library.keys())),
        loops=_each_at_least(counted.loops, loops, sorted(counted.loops.keys() | loops.keys())),
        busiest=_busiest_at_least(counted.busiest, executed),
        latencies=executed.get("latencies"),
    )  # fmt: skip
    return _as_touched(raised, executed)


def _as_touched(counted: LaunchTraffic, executed: Mapping[str, float]) -> LaunchTraffic:
    """With the sectors and lines of executed programs, if these exceed those of as many counted ones."""
    amounts: dict[str, float] = {}
    for kind in ("load", "store"):
        sectors, lines = f"{kind}_sector_bytes", f"grid_{kind}_bytes"
        amount = executed.get(f"touched.{kind}_sectors", 0.0) * getattr(counted, f"{kind}_bytes")
        amounts[sectors] = _raised(getattr(counted, sectors), _share(amount, getattr(counted, sectors)))
        few, amount = getattr(counted, f"few_{kind}_bytes"), executed.get(f"touched.{kind}_lines", 0.0)
        amounts[lines] = getattr(counted, lines) * (amount / few if amount > LINES_SLACK * few > 0 else 1.0)
    more = amounts["grid_load_bytes"] / counted.grid_load_bytes if counted.grid_load_bytes else 1.0
    return replace(counted, **amounts, wave_load_bytes=counted.wave_load_bytes * more)


def _each_at_least(
    counted: Mapping[str, float], executed: Mapping[str, float], names: Iterable[str]
) -> dict[str, float]:
    known = {name: counted.get(name, 0.0) for name in names}
    return {name: _raised(amount, _share(executed.get(name, 0.0), amount)) for name, amount in known.items()}


def _busiest_at_least(counted: tuple[ProgramWork, ...], executed: Mapping[str, float]) -> tuple[ProgramWork, ...]:
    """Add a program with the amounts by which executed programs exceed the counted ones."""
    amounts = {name[5:]: amount for name, amount in executed.items() if name.startswith("most.")}
    beyond = {
        name: amount
        for name, amount in amounts.items()
        if amount > EXECUTED_SLACK * max((_amount(work, name) for work in counted), default=0.0)
    }
    return (*counted, work_of(beyond)) if beyond else counted


def _amount(work: ProgramWork, name: str) -> float:
    kind, _, rest = name.partition(".")
    if kind.endswith("_bytes"):
        return work.moved_bytes
    if kind == "loop":
        return work.iterations.get(rest.split(".")[0], 0.0)
    if kind == "library":
        return work.library.get(rest, 0.0)
    return work.flops.get(rest, 0.0) if kind == "flops" else work.rounds if kind == "rounds" else work.waiting_rounds


def _share(executed: float, counted: float) -> tuple[float, float]:
    """Factor by which to raise a count, and the value if the count was zero."""
    if counted <= 0.0:
        return 1.0, executed
    return (executed / counted if executed > EXECUTED_SLACK * counted else 1.0), 0.0


def _raised(counted: float, by: tuple[float, float], programs: int = 1) -> float:
    return counted * by[0] + by[1] * programs
