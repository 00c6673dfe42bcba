"""Counts the traffic of a launch of real size: all programs if that is fast, else a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from evo_kernel.fitness.ir.counting import Counter, busiest_of, loops_in, mean_of
from evo_kernel.fitness.ir.engine import OutOfTime
from evo_kernel.fitness.ir.execute import ExecutionFinding, Launched, Traits, buffers_of, launch, traits_of
from evo_kernel.fitness.ir.footprints import MOST_PROGRAMS
from evo_kernel.fitness.ir.launch_traffic import SECTOR_BYTES, WAVE_PROGRAMS, LaunchTraffic
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.module import IRModule
from evo_kernel.fitness.plan.launch_plan import Launch

FEW, SIDE_BY_SIDE, STRETCHES = 64, 8, 3
"""Random programs of a launch, and numbers of contiguous ranges of programs, whose addresses are all recorded.

With 8 random programs, the counted traffic of a 4096^3 product had a standard deviation of 28 %; with 64, 7 %.
"""
FEWER = 4
"""In place of FEW, and one contiguous range, of kernels with shared memory whose loads depend on data."""
COUNT_S = 3.0
"""Seconds for counting all programs of a launch; if it takes longer, a random part is counted."""


MOST_COUNTED = 1 << 15
"""Maximal number of counted programs of a launch; of more, a random part."""


MOST_RUNS = 1 << 25
"""Maximal number of runs of bytes for recording lines of all counted programs: about half a second.

Above, lines of FEW programs are recorded.
"""


HELD_BYTES = 5 << 20
"""That every L2 holds. What a program reads again after fewer bytes of its wave comes from there."""


def count(
    module: IRModule, node: Launch, memory: DeviceMemory, deadline: float, complete: bool, seed: int = 0
) -> LaunchTraffic | ExecutionFinding:
    """Traffic of a launch, or the finding that ended the count; deterministic unless time runs out.

    `complete`: floating-point data is in memory too and used if addresses depend on it. Raises Unsupported, IRError,
    OutOfTime.
    """
    traits, total = traits_of(module), math.prod(node.grid)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(max(1, total - SIDE_BY_SIDE + 1), (STRETCHES, 1), generator=generator)
    few = _some(total, generator)
    if traits.alone and complete and _needs_data(module, node, memory, traits, deadline):
        starts, few = starts[:1], few[:FEWER]  # one program at a time takes seconds
    windows = starts + torch.arange(min(SIDE_BY_SIDE, total))
    sample = torch.unique(torch.cat([torch.tensor([0, total - 1]), few, windows.reshape(-1)]))
    restore = _kept(module, node, memory, traits)
    near = Counter(module, memory, total, True, seed, followed=few[:: -(-few.numel() // MOST_PROGRAMS)].contiguous())
    counted = torch.arange(total) if traits.waits else sample  # or some would wait for programs that are not executed
    launched, near = _walk(module, node, memory, counted, near, traits, deadline, complete, restore)
    if launched.finding is not None:
        return launched.finding
    everyone = near
    if total > counted.numel():
        ids = torch.arange(total)
        if total > MOST_COUNTED:
            ids = torch.randperm(total, generator=generator)[:MOST_COUNTED].sort().values
        restore()
        try:
            expected = near.footprints.seen * ids.numel() / sample.numel()
            whole = Counter(module, memory, total, expected <= MOST_RUNS, seed, sectors=False, expected=expected)
            until = min(deadline, time.monotonic() + COUNT_S)
            launched, whole = _walk(module, node, memory, ids, whole, traits, until, complete, restore)
            if launched.finding is not None:
                return launched.finding
            everyone, counted = whole, ids
        except OutOfTime:
            pass  # use the sample
    return _summary(node, near, sample, few, windows, everyone, counted, seed)


def _needs_data(module: IRModule, node: Launch, memory: DeviceMemory, traits: Traits, deadline: float) -> bool:
    """Whether what a program loads depends on floating-point data."""
    launched = launch(
        module, node.grid, node.args, memory, programs=torch.arange(1), deadline=deadline, skips_floats=True,
        surveys=True, heeds_loads=True, traits=traits,
    )  # fmt: skip
    return launched.finding is not None and launched.finding.kind == "undefined"


def _some(total: int, generator: torch.Generator) -> torch.Tensor:
    """FEW random distinct programs, unpredictable for kernels; all of a smaller launch."""
    if total <= MOST_COUNTED:
        return torch.randperm(total, generator=generator)[:FEW].sort().values
    drawn = torch.unique(torch.randint(total, (2 * FEW,), generator=generator))
    return drawn[torch.randperm(drawn.numel(), generator=generator)[:FEW]].sort().values


def _kept(module: IRModule, node: Launch, memory: DeviceMemory, traits: Traits) -> Callable[[], None]:
    """Restore what programs share through atomic operations: an exhausted counter would end the next run."""
    loaded, stored = (
        buffers_of(module.entry, node.args, reach, memory.buffers) for reach in (traits.loaded, traits.stored)
    )
    buffers = [memory.buffers[number] for number in loaded & stored] if traits.in_order else []
    before = [(b, b.storage.clone(), None if b.defined is None else b.defined.clone()) for b in buffers]

    def restore() -> None:
        for buffer, storage, defined in before:
            buffer.storage.copy_(storage)
            if defined is None or (buffer.defined is not None and defined.shape == buffer.defined.shape):
                buffer.defined = defined

    return restore


def _walk(
    module: IRModule, node: Launch, memory: DeviceMemory, programs: torch.Tensor, counter: Counter, traits: Traits,
    deadline: float, complete: bool, restore: Callable[[], None],
) -> tuple[Launched, Counter]:  # fmt: skip
    """Run programs without floating-point data, or with it if addresses depend on it; returns the counter too."""

    def run(observer: Counter, skips: bool) -> Launched:
        return launch(
            module, node.grid, node.args, memory, programs=programs, deadline=deadline, observer=observer,
            skips_floats=skips, surveys=skips and traits.alone, heeds_loads=True, traits=traits,
        )  # fmt: skip

    launched = run(counter, True)
    if complete and launched.finding is not None and launched.finding.kind == "undefined":
        counter = counter.again()
        restore()  # what the first run stored is unknown
        launched = run(counter, False)
    return launched, counter


def _summary(
    node: Launch, near: Counter, sample: torch.Tensor, few: torch.Tensor, windows: torch.Tensor, everyone: Counter,
    counted: torch.Tensor, seed: int,
) -> LaunchTraffic:  # fmt: skip
    """Combine counts: `near` observed `sample`, of which `few` are random and `windows` contiguous; `everyone`
    `counted`."""
    total = math.prod(node.grid)
    wave = min(total, WAVE_PROGRAMS)
    told_by_all = everyone.keeps_lines and (everyone is not near or counted.numel() == total)
    lines, those = (everyone, counted) if told_by_all else (near, few)  # not of neighbours, which share more
    shares = [("load_bytes", 1.0), ("store_bytes", 1.0)]
    shares += [(name, 0.01) for name in everyone.by_program if name.startswith("flops.")]
    work = sum(
        (everyone.by_program[name][counted] * share for name, share in shares),
        torch.zeros(counted.numel(), dtype=torch.float64),
    )
    load, store = (mean_of(everyone, f"{kind}_bytes", counted) for kind in ("load", "store"))
    wave_load_bytes = sum(near.footprints.expanded("load", window, wave) for window in windows) / len(windows)
    loaded, stored = (lines.footprints.by_buffer(kind, those, total) for kind in ("load", "store"))
    grid_load_bytes, grid_store_bytes = sum(loaded.values()), sum(stored.values())
    own = near.own_load_bytes(lines.footprints)
    reuse = near.reuse("load", seed, grid_load_bytes > HELD_BYTES)
    restores = near.reuse("store", seed, True).again if grid_store_bytes > HELD_BYTES else ()
    return LaunchTraffic(
        programs=total,
        sampled=int(counted.numel()),
        load_bytes=load,
        store_bytes=store,
        load_sector_bytes=load * _sector_share(near, sample, "load"),
        store_sector_bytes=store * _sector_share(near, sample, "store"),
        distinct_load_bytes=load * _share_of(near, sample, "distinct_load", "load_bytes"),
        atomic_elements=mean_of(everyone, "atomic", counted),
        store_lines=mean_of(near, "store_lines", sample),
        crowd=everyone.crowd(counted.numel(), total),
        wave_load_bytes=wave_load_bytes,
        grid_load_bytes=grid_load_bytes,
        rereads=reuse.again,
        restores=restores,
        new_rounds=reuse.new_rounds,
        own_load_bytes=sum(min(total * each, loaded.get(n, 0.0), stored.get(n, 0.0)) for n, each in own.items()),
        grid_store_bytes=grid_store_bytes,
        rounds=mean_of(everyone, "rounds", counted),
        waiting_rounds=mean_of(everyone, "waiting_rounds", counted),
        iterations=mean_of(everyone, "iterations", counted),
        imbalance=float(work.max() / work.mean()) if float(work.mean()) > 0 else 1.0,
        flops={n[6:]: mean_of(everyone, n, counted) for n in sorted(everyone.by_program) if n.startswith("flops.")},
        library={n[8:]: mean_of(everyone, n, counted) for n in sorted(everyone.by_program) if n.startswith("library.")},
        elements={kind: everyone.elements[kind] / counted.numel() for kind in ("fp", "mufu", "int", "reduce")},
        loops=loops_in(everyone, counted),
        few_load_bytes=near.footprints.expanded("load", few, min(FEW, total)),  # as many as of executed ones
        few_store_bytes=near.footprints.expanded("store", few, min(FEW, total)),
        busiest=busiest_of(everyone, counted),
    )


def _sector_share(counter: Counter, programs: torch.Tensor, kind: str) -> float:
    """Bytes of the sectors of accesses ÷ requested bytes."""
    return _share_of(counter, programs, f"{kind}_sectors", f"{kind}_bytes") * SECTOR_BYTES


def _share_of(counter: Counter, programs: torch.Tensor, count: str, whole: str) -> float:
    """One count of some programs ÷ another one."""
    amount = mean_of(counter, whole, programs)
    return mean_of(counter, count, programs) / amount if amount else 0.0


def touched(counter: Counter, programs: torch.Tensor) -> dict[str, float]:
    """Sectors' share of bytes, and bytes of distinct lines, of the programs for which they were recorded."""
    shares = {f"touched.{kind}_sectors": _sector_share(counter, programs, kind) for kind in ("load", "store")}
    return shares | {
        f"touched.{kind}_lines": counter.footprints.different(kind, programs) for kind in ("load", "store")
    }


def programs_with_lines(programs: torch.Tensor, seed: int) -> torch.Tensor:
    """The executed programs for which lines are recorded."""
    drawn = torch.randperm(programs.numel(), generator=torch.Generator().manual_seed(seed))[:FEW]
    return programs[drawn].sort().values
