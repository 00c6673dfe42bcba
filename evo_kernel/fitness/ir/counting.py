"""Counts what a launch asks of the memory system and of the units, by program, while it is executed.

Totals are exact for the programs that ran. Distinct lines need the addresses themselves: they are kept as intervals,
for a sample of programs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, SECTOR_BYTES, LoopTraffic, ProgramWork, work_of
from evo_kernel.fitness.ir.loops import loops_of
from evo_kernel.fitness.ir.memory import BASE_BITS, PADDING, DeviceMemory
from evo_kernel.fitness.ir.parse import IRModule, Operation
from evo_kernel.fitness.ir.rounds import RoundCounter
from evo_kernel.fitness.ir.types import Type

MOST_INTERVALS = 4_000_000
"""Of a sample of programs: about a second of sorting."""
_MUFU = {"math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.sin", "math.cos",
         "tt.precise_sqrt"}  # fmt: skip
_FREE = {"arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.make_range", "tt.get_program_id",
         "tt.get_num_programs", "tt.load", "tt.reshape", "tt.trans", "scf.for", "scf.while", "scf.if", "tt.bitcast",
         "arith.bitcast", "tt.call", "tt.descriptor_load"}  # fmt: skip
_KINDS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64", "f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5",
          "i8": "int8"}  # fmt: skip


class Counter:
    """Observes one launch of `programs` programs. With `footprints`, lines and sectors are kept too, of all or of some.

    With `blocks`, it is kept how often each program reaches each block. `by_program` holds what a loop does besides,
    inner ones left out, under "loop.", its name, and the names of `LoopTraffic`.
    """

    def __init__(
        self,
        module: IRModule,
        memory: DeviceMemory,
        programs: int,
        footprints: bool | torch.Tensor,
        blocks: bool = False,
    ) -> None:
        self.footprints_of = footprints
        self._memory, self._footprints, self._sample = memory, footprints is not False, None
        if isinstance(footprints, torch.Tensor):
            self._sample = torch.zeros(programs, dtype=torch.bool)
            self._sample[footprints] = True
        self._blocks = blocks_of(module) if blocks else frozenset()
        self._loops = loops_of(module)
        self.reached: defaultdict[int, torch.Tensor] = defaultdict(lambda: torch.zeros(programs, dtype=torch.int64))
        self.by_program: defaultdict[str, torch.Tensor] = defaultdict(
            lambda: torch.zeros(programs, dtype=torch.float64)
        )
        self.elements: defaultdict[str, float] = defaultdict(float)  # of all programs together
        self.computed: defaultdict[str, float] = defaultdict(float)  # by loop, of all programs together
        self.intervals: defaultdict[tuple[str, int], list[tuple[torch.Tensor, ...]]] = defaultdict(list)
        self.kept = 0
        self._rounds = RoundCounter(module, programs)
        self.by_program["rounds"] = self._rounds.rounds

    # --- Observer -------------------------------------------------------------------------------------------------

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None:
        if operation.ordinal in self._blocks:
            self.reached[operation.ordinal][programs] += 1
        if operation.name == "tt.call":
            self._begin(operation, programs)
        if operation.name in ("tt.dot", "tt.dot_scaled"):
            kind, flops = _product(operation)
            self.by_program[f"flops.{kind}"][programs] += flops
            if kind == "fp32":
                self._compute(operation, flops * programs.numel())
            return
        if result is None or operation.name in _FREE:
            return
        count = float(result.elements * programs.numel())
        if operation.name in ("tt.reduce", "tt.scan"):
            self.elements["reduce"] += (
                float(operation.types[0].elements * programs.numel()) if operation.types else count
            )
            return
        fp, mufu = _arithmetic(operation.name, result)
        self.elements["int"] += count if fp + mufu == 0 else 0.0
        self.elements["fp"] += fp * count
        self.elements["mufu"] += mufu * count
        self._compute(operation, (fp + mufu) * count)

    def _compute(self, operation: Operation, results: float) -> None:
        if (loop := self._loops.around.get(operation.ordinal)) is not None:
            self.computed[loop] += results

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None:
        self.by_program["iterations"][programs] += 1
        self._begin(operation, programs)
        self._rounds.end(programs)

    def _begin(self, operation: Operation, programs: torch.Tensor) -> None:
        self.by_program[f"loop.{self._loops.begins[operation.ordinal]}.iterations"][programs] += 1

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        kind = "load" if operation.name in ("tt.load", "tt.descriptor_load", "tt.descriptor_gather") else "store"
        self._rounds.access(operation, pointer, programs)
        lanes = _active(mask, programs.numel(), shape)
        self.by_program[f"{kind}_bytes"][programs] += lanes * item
        if kind == "load" and (loop := self._loops.around.get(operation.ordinal)) is not None:
            self.by_program[f"loop.{loop}.load_bytes"][programs] += lanes * item
        if "atomic" in operation.name or operation.name == "tt.descriptor_reduce":
            self.by_program["atomic"][programs] += lanes
        if self._footprints and self.kept < MOST_INTERVALS:
            self._keep(kind, pointer, mask, programs, item, shape)

    # --- footprints -----------------------------------------------------------------------------------------------

    def _keep(
        self, kind: str, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple[int, ...]
    ) -> None:
        if self._sample is not None:
            rows = self._sample[programs].nonzero().squeeze(1)
            if not rows.numel():
                return
            pointer, mask, programs = pointer.rows(rows), mask and mask.rows(rows), programs[rows]
        starts, lengths, owners = _intervals(self._memory, pointer, mask, programs, item, shape)
        if not starts.numel():
            return
        ends = starts + lengths - 1
        sectors = torch.div(ends, SECTOR_BYTES, rounding_mode="floor") - torch.div(
            starts, SECTOR_BYTES, rounding_mode="floor"
        )
        self.by_program[f"{kind}_sectors"].index_add_(0, owners, (sectors + 1).double())
        buffers = starts >> BASE_BITS
        low, high = map(int, torch.aminmax(buffers))
        for buffer in (low,) if low == high else torch.unique(buffers).tolist():
            chosen = slice(None) if low == high else buffers == buffer
            parts = (owners[chosen], starts[chosen] // LINE_BYTES, ends[chosen] // LINE_BYTES)
            self.intervals[(kind, int(buffer) - 1)].append(parts)
            self.kept += parts[0].numel()

    def footprints(self, kind: str) -> dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """By buffer: owner, first and last line of all intervals of a kind."""
        return {
            buffer: tuple(torch.cat(column) for column in zip(*parts, strict=True))  # pyright: ignore
            for (name, buffer), parts in self.intervals.items()
            if name == kind
        }


def blocks_of(module: IRModule) -> frozenset[int]:
    """The first operation of every block that a program may pass by."""
    regions = [r for o in module.operations() if o.name not in ("tt.reduce", "tt.scan") for r in o.regions]
    blocks = [block for region in regions for block in region.blocks]
    blocks += [block for function in module.functions.values() for block in function.body.blocks]
    return frozenset(block.operations[0].ordinal for block in blocks if block.operations)


def lines_of(first: torch.Tensor, last: torch.Tensor, owners: torch.Tensor | None = None) -> float:
    """Different lines that intervals cover: those of one owner together, owners apart; of everybody if None."""
    if owners is not None:
        apart = int(last.max()) + 1
        first, last = first + owners * apart, last + owners * apart
    order = torch.argsort(first)
    first, last = first[order], last[order]
    reached = torch.cummax(last, 0).values
    before = torch.cat([first[:1] - 1, reached[:-1]])
    return float((last - torch.maximum(first - 1, before)).clamp(min=0).sum())


def _product(operation: Operation) -> tuple[str, float]:
    a = operation.types[0]
    shape = operation.results[0].type.shape or (1, 1)
    depth = (a.shape or (1,))[-1]
    # No target of ours multiplies scaled operands: they are converted first.
    kind = "bf16" if operation.name == "tt.dot_scaled" else _KINDS.get(a.element, "fp32")
    if kind == "fp32":
        kind = {"tf32": "tf32", "tf32x3": "tf32x3"}.get(operation.attributes.get("inputPrecision", "ieee"), "fp32")
    if operation.name == "tt.dot_scaled" and operation.attributes.get("lhs") == "e2m1":
        depth *= 2
    return kind, 2.0 * math.prod(shape) * depth


def _arithmetic(name: str, result: Type) -> tuple[int, int]:
    """What an element of a result takes of the units for floating-point numbers: (plain, transcendental) operations."""
    if name in ("arith.divf", "tt.precise_divf"):
        return 7, 1  # a division, besides its reciprocal
    if name in ("math.erf", "tt.extern_elementwise"):
        return 20, 1
    return (0, 1) if name in _MUFU else (int(result.is_float), 0)


def _active(mask: Lanes | None, programs: int, shape: tuple[int, ...]) -> torch.Tensor | float:
    """Lanes of each program for which a mask is on: one number where it does not differ between programs."""
    whole = float(math.prod(shape))
    if mask is None:
        return whole
    by_axis: dict[int, torch.Tensor] = {}
    for factor in mask.factors:
        varying = [axis for axis, size in enumerate(factor.shape) if size > 1]
        if len(varying) != 1:
            data = mask.data
            spread = whole * data.shape[0] / data.numel()
            counts = data.reshape(data.shape[0], -1).sum(1).double() * spread
            return counts if counts.numel() > 1 else float(counts)
        flat = factor.reshape(-1)
        by_axis[varying[0]] = by_axis[varying[0]] & flat if varying[0] in by_axis else flat
    share = torch.ones(1, dtype=torch.float64)
    for axis, on in by_axis.items():
        share = share * (on.double() if axis == 0 else on.double().mean())
    return share * whole if share.numel() > 1 else float(share) * whole


def _intervals(
    memory: DeviceMemory, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Addresses of runs of consecutive bytes that an access touches: first byte, length, program."""
    full = (programs.numel(), *shape)
    access = memory.access(pointer.sum, item, len(full), PADDING // 2 if mask is not None else 0)
    axis, length = None, 1
    if access is not None:
        for place, size, step in access.progressions:
            if step == item and place > 0:
                axis, length = place, size
    if axis is None or access is None:
        starts = pointer.data.expand(full)
        lengths = torch.full((1,) * len(full), item).expand(full)
        active = None if mask is None else mask.data.expand(full)
    else:
        base = memory.address(memory.buffers.index(access.buffer)) - PADDING
        others = tuple(p for p in access.progressions if p[0] != axis)
        rows = type(access)(access.buffer, access.offset, others, access.indices, access.rank)
        reduced = tuple(1 if a == axis else size for a, size in enumerate(full))
        starts = (rows.offsets() + base).expand(reduced)
        counts = torch.full((1,) * len(full), length).expand(reduced)
        if mask is not None:
            on = mask.data
            if on.shape[axis] > 1 and _has_holes(on, axis):
                return _stretches(on.expand(full).movedim(axis, -1), starts.movedim(axis, -1)[..., 0], programs, item)
            if on.shape[axis] > 1:
                counts = on.sum(axis, keepdim=True).expand(reduced)
                starts = starts + on.int().argmax(axis, keepdim=True) * item
            else:
                counts = torch.where(on, length, 0).expand(reduced)
        lengths, active = counts * item, None
        if mask is not None:
            active = counts > 0
    owners = programs.reshape(-1, *(1,) * len(shape)).expand(starts.shape)
    # Axes along which lanes share their elements would only repeat the same runs.
    if active is not None:
        active = active.expand(starts.shape)
        return starts[active], lengths.expand(starts.shape)[active], owners[active]
    return starts.reshape(-1), lengths.expand(starts.shape).reshape(-1), owners.reshape(-1)


def _has_holes(on: torch.Tensor, axis: int) -> bool:
    """Whether lanes are off between lanes that are on."""
    return bool((on.movedim(axis, -1).int().diff(dim=-1) > 0).sum(-1).gt(~on.movedim(axis, -1)[..., 0]).any())


def _stretches(
    on: torch.Tensor, starts: torch.Tensor, programs: torch.Tensor, item: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs of lanes that are on, as `_intervals`; the lanes of a row are the last axis. `starts`: by row."""
    begins, ends = on.clone(), on.clone()
    begins[..., 1:] &= ~on[..., :-1]
    ends[..., :-1] &= ~on[..., 1:]
    *rows, first = begins.nonzero(as_tuple=True)
    last = ends.nonzero(as_tuple=True)[-1]  # in the same order, row by row
    return starts[tuple(rows)] + first * item, (last - first + 1) * item, programs[rows[0]]


def mean_of(counter: Counter, name: str, programs: Sequence[int] | torch.Tensor) -> float:
    """Of a count, over some programs."""
    return float(counter.by_program[name][torch.as_tensor(programs)].mean()) if name in counter.by_program else 0.0


def means_of(counter: Counter) -> dict[str, float]:
    """What programs did, over all of a launch; under "most.", what the busiest did."""
    return {name: float(amounts.mean()) for name, amounts in counter.by_program.items()} | most_of(counter)


def most_of(counter: Counter) -> dict[str, float]:
    return {f"most.{name}": float(counter.by_program[name].max()) for name in _lasting(counter)}


def _lasting(counter: Counter) -> list[str]:
    """What makes a program last, however many others run beside it."""
    return sorted(n for n in counter.by_program if n == "rounds" or n.startswith("flops.") or n.endswith(".iterations"))


def busiest_of(counter: Counter, programs: torch.Tensor) -> tuple[ProgramWork, ...]:
    """Of `programs`, those that do most of something that makes a program last."""
    names = _lasting(counter)
    busiest = {int(programs[counter.by_program[name][programs].argmax()]) for name in names}
    work = [{name: float(counter.by_program[name][one]) for name in names} for one in sorted(busiest)]
    return tuple(map(work_of, work))


def loops_in(counter: Counter, programs: torch.Tensor) -> dict[str, LoopTraffic]:
    """What `programs`, all that were counted, do in each loop, in the mean."""
    return {
        loop: LoopTraffic(
            iterations=mean_of(counter, f"loop.{loop}.iterations", programs),
            load_bytes=mean_of(counter, f"loop.{loop}.load_bytes", programs),
            computed=counter.computed[loop] / programs.numel(),
        )
        for loop in sorted({name.split(".")[1] for name in counter.by_program if name.startswith("loop.")})
    }
