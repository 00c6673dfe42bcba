"""Sampling a launch: a few dozen of its programs, counted as they run in the interpreter.

Programs are drawn in three ways: at fixed places of the launch (imbalance, edges), at random inside one window of
consecutive programs (what neighbours share), and at random over the whole launch (what everybody shares). Where the
first dozen and a few side by side do exactly the same work, more would say nothing new and are left out.
Loops of more than `LOOP_SAMPLE` + 1 iterations run `LOOP_SAMPLE` of them, and the last one counts for all that were
skipped: accesses that are new in every iteration are counted right, ones at the loop's ragged end as if it were not
ragged.
How many programs run follows from what the first one cost, in elements and operations, never from the clock.
"""

# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir as _ir
from triton.runtime import interpreter

from evo_kernel.fitness.interpreting.device_functions import numbers_of
from evo_kernel.fitness.interpreting.emulation import Builder, Handle, KernelFault, Memory, NotInterpretable, wrap
from evo_kernel.fitness.interpreting.interpret import Machine, table_of
from evo_kernel.fitness.interpreting.sampling_math import expand, is_disjoint
from evo_kernel.fitness.interpreting.traffic import SECTOR_BYTES, WAVE_PROGRAMS, LaunchTraffic
from evo_kernel.fitness.plan import Constant, Launch, Plan

LOOP_SAMPLE = 3
BUDGET = 45_000_000
"""Cost units a launch: one an element touched, and `OPERATION_COST` an operation; about 0.3 s on one core."""
OPERATION_COST = 4000
PROGRAM_LIMIT = 4 * BUDGET  # a program that costs more is cut short
FEWEST, MOST = 6, 64
FEW, SIDE_BY_SIDE = 12, 8
"""Programs all over a launch, and next to each other, that are enough when they all do the same: see `_alike`."""
_MUFU = {np.exp, np.exp2, np.log, np.log2, np.sqrt, np.sin, np.cos}


class _Enough(Exception):
    """This program has cost too much."""


@dataclasses.dataclass
class _Program:
    """Counts of one program."""

    cost: float = 0.0
    counts: defaultdict[str, float] = dataclasses.field(default_factory=lambda: defaultdict(float))
    lines: dict[tuple[str, int], list[tuple[np.ndarray, float]]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def footprints(self) -> dict[tuple[str, int], tuple[np.ndarray, float]]:
        """By (kind, buffer): lines touched, and how many they stand for where loops were sampled. Ask at the end."""
        made = {}
        for key, parts in self.lines.items():
            seen: np.ndarray = np.zeros(0, dtype=np.uint64)
            weight = 0.0
            for lines, each in parts:
                fresh = np.setdiff1d(lines, seen, assume_unique=True) if seen.size else lines
                weight += each * fresh.size
                seen = np.union1d(seen, fresh) if seen.size else fresh
            made[key] = (seen, weight)
        return made


_NORMALS = np.random.default_rng(20240229).standard_normal(1 << 16).astype(np.float32)


def plausible(places: np.ndarray) -> np.ndarray:
    """Normal numbers, by a hash of each place (uint64): no kernel can tell them from a task's inputs by a period."""
    mixed = (places ^ (places >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64's multiplier
    return _NORMALS[((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(48)]


class CountingBuilder(Builder):
    """Counts instead of computing where values do not matter.

    Where they do, they are plausible: memory holds zeros here, and a kernel that leaves early on zeros would look fast.
    """

    def __init__(self, memory: Memory, options: dict[str, Any] | None = None, kernel: str = "") -> None:
        super().__init__(memory, options, kernel)
        self.weight = 1.0
        self.loads_here = 0  # loads since the innermost loop's iteration began
        self.current = _Program()

    def _spend(self, elements: int) -> None:
        self.current.cost += elements + OPERATION_COST
        if self.current.cost > PROGRAM_LIMIT:
            raise _Enough

    def _count(self, kind: str, elements: float) -> None:
        self.current.counts[kind] += elements * self.weight
        self._spend(int(elements))

    def access(self, ptrs: Any, mask: np.ndarray | None, what: str) -> None:
        item = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        self._spend(4 * ptrs.data.size)
        used = ptrs.data if mask is None or mask.all() else ptrs.data[np.broadcast_to(mask, ptrs.data.shape)]
        if not used.size:
            return
        buffer = self.memory.check(used, item, f"{self.kernel}, program {self.grid_idx}: {what}")
        sectors = np.unique(used.ravel() >> np.uint64(5))
        lines = np.unique(sectors >> np.uint64(2))
        kind = "load" if what == "a load" else "store"
        if what == "a load":
            self.loads_here += 1
        if "atomic" in what:
            self.current.counts["atomic"] += used.size * self.weight
        self.current.counts[f"{kind}_bytes"] += used.size * item * self.weight
        self.current.counts[f"{kind}_sectors"] += sectors.size * self.weight
        self.current.lines.setdefault((kind, buffer), []).append((lines, self.weight))

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *policy: Any, **named: Any) -> Any:
        loaded = super().create_masked_load(ptrs, mask, other, *policy, **named)
        kind = loaded.dtype.scalar
        if not kind.is_floating():
            return loaded  # often indices, which zero serves best
        empty = np.broadcast_to(mask.data, loaded.data.shape) & (loaded.data == 0)
        return Handle(np.where(empty, wrap(plausible(ptrs.data), kind).data, loaded.data), kind)

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        floating = lhs.dtype.scalar.is_floating()
        size = max(lhs.data.size, rhs.data.size)
        if op is np.divide and floating:
            self._count("mufu", size)
            self._count("fp", 7 * size)  # what an IEEE division takes besides its reciprocal
        else:
            self._count("fp" if floating else "int", size)
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        self._count("mufu" if op in _MUFU else "fp", arg.data.size)
        return super().unary_op(arg, op)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Callable[..., Any]) -> Any:
        self._count("fp", max(lhs.data.size, rhs.data.size))
        return super().ternary_op(lhs, rhs, other, op)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        self._count("fp", z.data.size)
        return super().create_fma(x, y, z)

    def create_erf(self, arg: Any) -> Any:
        self._count("fp", 20 * arg.data.size)
        self._count("mufu", arg.data.size)
        return Handle(np.zeros_like(arg.data), arg.dtype.scalar)

    def create_rsqrt(self, arg: Any) -> Any:
        self._count("mufu", arg.data.size)
        return Handle(np.ones_like(arg.data), arg.dtype.scalar)

    def create_addptr(self, ptr: Any, offset: Any) -> Any:
        self._count("int", max(ptr.data.size, offset.data.size))
        return super().create_addptr(ptr, offset)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        self._count("fp", src.data.size)
        return super().cast_impl(src, dst_type)

    def note_reduction(self, elements: int) -> None:
        self._count("reduce", elements)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        kind = str(a.dtype.scalar)
        if kind == "fp32":
            kind = {"TF32": "tf32", "IEEE": "fp32"}.get(_precision_name(input_precision), "tf32x3")
        flops = 2 * math.prod(d.data.shape) * a.data.shape[-1]
        self.current.counts[f"flops.{kind}"] += flops * self.weight
        self._spend(0)
        if not d.dtype.scalar.is_floating():
            return Handle(d.data, d.dtype.scalar)
        return wrap(plausible(np.arange(d.data.size, dtype=np.uint64)).reshape(d.data.shape), d.dtype.scalar)

    def create_extern_elementwise(self, *args: Any) -> Any:
        self._count("fp", 10 * args[3][0].data.size)
        self._count("mufu", args[3][0].data.size)
        return super().create_extern_elementwise(*args)

    def loop(self, *bounds: Any, **options: Any) -> Iterator[Any]:
        """In place of `range`: the first iterations, the last of which counts for the skipped ones."""
        whole = numbers_of(*bounds, **options)
        outer, before = self.weight, self.loads_here
        run = whole if len(whole) <= LOOP_SAMPLE + 1 else whole[:LOOP_SAMPLE]
        self.current.counts["iterations"] += len(whole) * outer
        try:
            for number, value in enumerate(run):
                last = number == len(run) - 1
                self.weight = outer * (len(whole) - len(run) + 1 if last else 1)
                self.loads_here = 0
                yield interpreter._implicit_cvt(value)
                self._end_round()
        finally:
            self.weight, self.loads_here = outer, before

    def _end_round(self) -> None:
        if self.loads_here:
            self.current.counts["rounds"] += self.weight
            self.loads_here = 0


def _precision_name(precision: Any) -> str:
    return next((n for n in ("IEEE", "TF32", "TF32x3") if precision == getattr(_ir.INPUT_PRECISION, n)), "BF16x3")


class Sampler:
    """Samples the launches of one plan. Equal launches are sampled once."""

    def __init__(self, plan: Plan, folder: Path, seed: int = 0) -> None:
        self._machine = Machine(plan, folder, CountingBuilder)
        for node in plan.nodes:
            if isinstance(node, Constant):  # tables say what programs do: left as zeros, all would do the same
                self._machine.view(node.view).copy_(table_of(node))
        self._seed = seed
        self._known: dict[str, LaunchTraffic] = {}

    def fill(self, buffer: int, data: torch.Tensor) -> None:
        """Give a buffer its bytes."""
        self._machine.memory.of(buffer)[: data.numel()].copy_(data)

    def traffic(self, launch: Launch) -> LaunchTraffic:
        key = launch.model_dump_json()
        if key not in self._known:
            with np.errstate(all="ignore"):
                self._known[key] = self._sample(launch)
        return self._known[key]

    def _sample(self, launch: Launch) -> LaunchTraffic:
        total = math.prod(launch.grid)
        draw = np.random.default_rng(self._seed)
        complete = True
        ran: dict[int, _Program] = {}

        def run(number: int) -> _Program:
            nonlocal complete
            if number not in ran:
                ran[number], whole = self._run(launch, number)
                complete = complete and whole
            return ran[number]

        first = run(0)
        count = int(min(max(BUDGET // max(first.cost, 1.0), FEWEST), MOST, total))
        fixed = sorted({total * i // 3 for i in range(3)} | {total - 1})[: max(2, count // 4)]
        rest = max(0, count - len(fixed))
        start = int(draw.integers(max(1, total - WAVE_PROGRAMS + 1)))
        width = min(WAVE_PROGRAMS, total)
        window = [start + int(i) for i in draw.permutation(width)[: -(-rest * 2 // 3)]]
        anywhere = [int(i) for i in draw.integers(total, size=rest - len(window))] if rest > len(window) else []
        places = list(dict.fromkeys([0, *fixed, *anywhere]))
        if count >= 2 * (FEW + SIDE_BY_SIDE):
            few = [run(i) for i in places[:FEW]]
            beside = [run(i) for i in range(start, start + SIDE_BY_SIDE)] if _alike(few) else []
            if beside and _alike([*few, *beside]):
                return self._summary(launch, few, beside, len(ran), complete)
        everywhere = [run(i) for i in places]
        neighbours = [run(i) for i in window] or everywhere
        return self._summary(launch, everywhere, neighbours, len(ran), complete)

    def _run(self, launch: Launch, number: int) -> tuple[_Program, bool]:
        builder, bound = self._machine.bind(launch)
        assert isinstance(builder, CountingBuilder)
        bound.function.__globals__["range"] = builder.loop
        whole_range = tl.range
        setattr(tl, "range", builder.loop)  # noqa: B010
        x, y, z = (int(i) for i in np.unravel_index(number, launch.grid[::-1])[::-1])  # x runs fastest on a GPU
        whole = True
        try:
            self._machine.program(builder, bound, (x, y, z))
        except (KernelFault, NotInterpretable) as fault:
            if "_Enough" not in str(fault):
                raise
            whole = False
        finally:
            setattr(tl, "range", whole_range)  # noqa: B010  whoever executes in this process runs whole loops
        builder._end_round()
        return builder.current, whole

    def _summary(
        self, launch: Launch, everywhere: list[_Program], neighbours: list[_Program], sampled: int, complete: bool
    ) -> LaunchTraffic:
        total = math.prod(launch.grid)

        def mean(name: str) -> float:
            return float(np.mean([p.counts[name] for p in everywhere]))

        work = [p.counts["load_bytes"] + p.counts["store_bytes"] + sum(_flops(p).values()) / 100 for p in everywhere]
        limits = [buffer.bytes for buffer in self._machine.plan.buffers]
        return LaunchTraffic(
            programs=total,
            sampled=sampled,
            load_bytes=mean("load_bytes"),
            store_bytes=mean("store_bytes"),
            load_sector_bytes=mean("load_sectors") * SECTOR_BYTES,
            store_sector_bytes=mean("store_sectors") * SECTOR_BYTES,
            atomic_elements=mean("atomic"),
            wave_load_bytes=_together(neighbours, "load", min(total, WAVE_PROGRAMS), limits),
            grid_load_bytes=_together(everywhere, "load", total, limits),
            grid_store_bytes=_together(everywhere, "store", total, limits),
            rounds=mean("rounds"),
            iterations=mean("iterations"),
            imbalance=max(work) / max(float(np.mean(work)), 1e-9) if any(work) else 1.0,
            flops={kind: mean(f"flops.{kind}") for kind in sorted({k for p in everywhere for k in _flops(p)})},
            elements={kind: mean(kind) for kind in ("fp", "mufu", "int", "reduce")},
            complete=complete,
        )


def sample_traffic(
    plan: Plan, folder: Path, contents: Mapping[int, torch.Tensor] | None = None, seed: int = 0
) -> list[LaunchTraffic]:
    """Traffic of every kernel launch of a plan, in order.

    Runs in a clean process with TRITON_INTERPRET=1. `folder` is scratch. `contents` gives bytes (uint8) for input
    buffers whose values decide addresses, by buffer; tables of the plan hold what they say. All others read as zeros,
    and their pages are never touched unless a sampled program stores there. The same arguments give the same answer.
    Raises KernelFault and NotInterpretable as `interpret.execute` does.
    """
    sampler = Sampler(plan, folder, seed)
    for buffer, data in (contents or {}).items():
        sampler.fill(buffer, data)
    return [sampler.traffic(launch) for launch in plan.launches]


def _flops(program: _Program) -> dict[str, float]:
    return {name[6:]: value for name, value in program.counts.items() if name.startswith("flops.")}


def _alike(programs: list[_Program]) -> bool:
    """Whether programs count the same, and of each buffer touch the very same lines or lines of their own.

    Then all estimates from these programs are those from any larger sample of such programs.
    """
    first = programs[0]
    if any(program.counts != first.counts for program in programs):
        return False
    footprints = [program.footprints for program in programs]
    if any(made.keys() != footprints[0].keys() for made in footprints):
        return False
    for key, (lines, weight) in footprints[0].items():
        parts = [made[key] for made in footprints]
        if any((part.size, each) != (lines.size, weight) for part, each in parts):
            return False
        different = np.unique(np.concatenate([part for part, _ in parts])).size / lines.size
        if different > 1 and not is_disjoint(different, len(parts)):
            return False
    return True


def _together(programs: list[_Program], kind: str, count: int, limits: list[int]) -> float:
    """Bytes of different lines that `count` programs touch, from a sample of them; each buffer at most whole.

    Programs are taken to fall into groups of equal size that touch the same lines of a buffer (the tiles of a row share
    their rows of A). The number of groups G is where m programs are expected to touch G (1 - (1 - 1/G)^m) of them.
    """
    footprints = [program.footprints for program in programs]
    bytes_in_all = 0.0
    for key in {key for made in footprints for key in made if key[0] == kind}:
        parts = [made[key] for made in footprints if key in made]
        weight = sum(each for _, each in parts) / len(footprints)  # lines a program stands for
        union = np.unique(np.concatenate([lines for lines, _ in parts])).size
        raw = sum(lines.size for lines, _ in parts)
        different = union / max(raw / len(parts), 1e-9)  # footprints' worth of different lines
        lines = weight * expand(different, len(parts), count)
        bytes_in_all += min(128.0 * lines, float(limits[key[1]]))
    return bytes_in_all
