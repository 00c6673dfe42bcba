"""Estimates the number of distinct cache lines that a launch's programs access, by sampling memory blocks.

Programs share lines in ways that a sample of programs does not show: what 2 of 64 programs share may be shared by 2 of
all programs or by a thirtieth of them. So lines are sampled: for a sampled line, all programs that access it are
recorded. Of 2^level neighbouring blocks of a buffer one random block is sampled. If all blocks are accessed, as when a
tensor is read completely, the estimate has no variance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evo_kernel.fitness.ir.coalescing import Runs, together
from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES
from evo_kernel.fitness.ir.memory import BASE_BITS, DeviceMemory

_LINE_BITS = LINE_BYTES.bit_length() - 1  # shifts take a tenth of the time of divisions
_BLOCK_BITS = 3
BLOCK_LINES = 1 << _BLOCK_BITS
_OFFSET = (1 << BASE_BITS) - 1
_OWNER_BITS = 32
_OWNERS = (1 << _OWNER_BITS) - 1
MOST_KEPT = 1_000_000
"""Number of runs of lines: sorting them takes about a quarter of a second."""
_COMMON = 8
"""Of a sample of programs, how many access a line that any sample of this size would contain."""

Lines = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Runs of lines: program (above its bits, the number of the access), first and last line, relative to the start of a
buffer."""


class Footprints:
    """Collects runs of lines by kind of access and buffer. `seed`: selects the sampled blocks; unknown to kernels."""

    def __init__(self, memory: DeviceMemory, seed: int, expected: float = 0.0) -> None:
        """`expected`: approximate number of runs; a good guess avoids recording runs that are dropped later."""
        self._memory, self._generator = memory, torch.Generator().manual_seed(seed)
        self._runs: defaultdict[tuple[str, int], list[Lines]] = defaultdict(list)
        self._drawn: dict[int, torch.Tensor] = {}  # by buffer: the sampled block of each 2^level
        self._tables: dict[int, torch.Tensor] = {}  # by buffer: for each block, whether it is sampled
        self._level = max(0, math.ceil(math.log2(max(1.0, expected / MOST_KEPT))))
        self._kept = 0
        self.seen = 0  # runs, recorded or not
        self._accesses = 0  # their numbers are kept above the bits of the programs

    def add(self, kind: str, runs: Runs) -> None:
        self.seen += runs.starts.numel()
        low, high = (int(end) >> BASE_BITS for end in torch.aminmax(runs.starts))
        if low == high and self._level:
            runs = self._hits(low - 1, runs)
        runs = Runs(*(column.reshape(-1) for column in runs))
        owners = runs.owners + (self._accesses << _OWNER_BITS)
        self._accesses += 1
        first = (runs.starts & _OFFSET) >> _LINE_BITS
        last = ((runs.starts & _OFFSET) + runs.lengths - 1) >> _LINE_BITS
        buffers = None if low == high else runs.starts >> BASE_BITS
        for number in (low,) if buffers is None else torch.unique(buffers).tolist():
            if not 0 < number <= len(self._memory.buffers):
                continue  # out of bounds, which the executor will report
            chosen = slice(None) if buffers is None else buffers == number
            lines = owners[chosen], first[chosen], last[chosen]
            lines = _joined(self._sampled(number - 1, lines) if self._level else lines)
            self._runs[(kind, number - 1)].append(lines)
            self._kept += lines[0].numel()
        self._thin_out()

    def add_all(self, accesses: Sequence[tuple[str, Runs]]) -> None:
        """As `add` of one access after the other, to the bit, but quicker where they are small. Runs are flat."""
        if len(accesses) < 2:
            for kind, runs in accesses:
                self.add(kind, runs)
            return
        which, runs = together([runs for _, runs in accesses])
        numbers = runs.starts >> BASE_BITS
        inside = (numbers > 0) & (numbers <= len(self._memory.buffers))  # else the executor is about to find it
        pairs = torch.unique(((which << _OWNER_BITS) + numbers - 1)[inside]).tolist()
        reached = [divmod(pair, 1 << _OWNER_BITS) for pair in pairs]  # accesses and buffers, in order
        new = next((access for access, buffer in reached if self._level and buffer not in self._drawn), None)
        if new is not None:  # what is drawn depends on what was drawn before
            self.add_all(accesses[:new])
            self.add(*accesses[new])
            self.add_all(accesses[new + 1 :])
            return
        first = (runs.starts & _OFFSET) >> _LINE_BITS
        last = ((runs.starts & _OFFSET) + runs.lengths - 1) >> _LINE_BITS
        owners = runs.owners + ((self._accesses + which) << _OWNER_BITS)  # so that only runs of one access are joined
        loads = torch.tensor([kind == "load" for kind, _ in accesses])[which]
        keys: dict[tuple[str, int], int] = {}  # the first access of each
        for access, buffer in reached:
            keys.setdefault((accesses[access][0], buffer), access)
        parts: list[Lines] = []
        kept = torch.zeros(len(accesses), dtype=torch.int64)
        for kind, buffer in keys:
            chosen = (numbers == buffer + 1) & (loads == (kind == "load"))
            lines = (owners[chosen], first[chosen], last[chosen])
            parts.append(_joined(self._sampled(buffer, lines) if self._level else lines))
            kept += torch.bincount((parts[-1][0] >> _OWNER_BITS) - self._accesses, minlength=len(accesses))
        total = self._kept + kept.cumsum(0)
        end = min(len(accesses), int((total <= MOST_KEPT).sum()) + 1)  # for those behind it fewer are kept
        for (key, access), lines in zip(keys.items(), parts, strict=True):
            if access < end:
                begun = (lines[0] >> _OWNER_BITS) < self._accesses + end
                self._runs[key].append((lines[0][begun], lines[1][begun], lines[2][begun]))
        self._accesses += end
        self._kept = int(total[end - 1])
        self.seen += int((which < end).sum())
        self._thin_out()
        self.add_all(accesses[end:])

    def _hits(self, buffer: int, runs: Runs) -> Runs:
        """Drop most of the runs that touch no sampled block: fast for very many runs."""
        if not 0 <= buffer < len(self._memory.buffers) or int(runs.lengths.max()) > LINE_BYTES * BLOCK_LINES:
            return runs
        if buffer not in self._tables:
            drawn = self._drawn_of(buffer)
            table = torch.zeros(drawn.numel() << self._level, dtype=torch.bool)
            table[(torch.arange(drawn.numel()) << self._level) + drawn] = True
            self._tables[buffer] = table
        table, bits = self._tables[buffer], _LINE_BITS + _BLOCK_BITS
        begins = runs.starts & _OFFSET
        ends = begins + (runs.lengths - 1)
        if int(ends.max()) >> bits >= table.numel():
            return runs
        hits = (table[begins >> bits] | table[ends >> bits]).nonzero(as_tuple=True)
        return Runs(*(column[hits] for column in runs))

    def _thin_out(self) -> None:
        while self._kept > MOST_KEPT:
            self._thin()

    def _thin(self) -> None:
        """Halve the number of sampled blocks."""
        self._level += 1
        self._tables.clear()
        for buffer, drawn in self._drawn.items():
            pairs = torch.cat([drawn, drawn[-1:]])[: (drawn.numel() + 1) // 2 * 2].reshape(-1, 2)
            second = torch.randint(2, (len(pairs),), generator=self._generator)
            half = 1 << (self._level - 1)
            self._drawn[buffer] = pairs.gather(1, second[:, None])[:, 0] + second * half
        for (kind, buffer), parts in list(self._runs.items()):
            self._runs[(kind, buffer)] = [self._sampled(buffer, part) for part in parts]
        self._kept = sum(part[0].numel() for parts in self._runs.values() for part in parts)

    def _sampled(self, buffer: int, lines: Lines) -> Lines:
        """The parts of runs in sampled blocks."""
        owners, first, last = lines
        span = _BLOCK_BITS + self._level  # bits of a group's lines
        drawn = self._drawn_of(buffer)
        group = first >> span
        times = (last >> span) - group + 1
        if bool((times > 1).any()):
            owners, first, last, group = (column.repeat_interleave(times) for column in (owners, first, last, group))
            before = (times.cumsum(0) - times).repeat_interleave(times)
            group = group + torch.arange(group.numel()) - before
        # Beyond the last group is out of bounds.
        begin = (group << span) + (drawn[group.clamp(max=drawn.numel() - 1)] << _BLOCK_BITS)
        first, last = torch.maximum(first, begin), torch.minimum(last, begin + BLOCK_LINES - 1)
        kept = first <= last
        return owners[kept], first[kept], last[kept]

    def _drawn_of(self, buffer: int) -> torch.Tensor:
        if buffer not in self._drawn:
            groups = 1 + (self._memory.buffers[buffer].size >> _LINE_BITS >> _BLOCK_BITS >> self._level)
            self._drawn[buffer] = torch.randint(1 << self._level, (groups,), generator=self._generator)
        return self._drawn[buffer]

    @property
    def scale(self) -> int:
        """Lines for each that is observed."""
        return 1 << self._level

    # --- what they tell, in bytes ---------------------------------------------------------------------------------

    def different(self, kind: str, programs: torch.Tensor | None = None) -> float:
        """Bytes of distinct lines accessed by some programs, or all observed ones; at most each buffer's size."""
        return sum(self._different(kind, programs).values())

    def _different(self, kind: str, programs: torch.Tensor | None) -> dict[int, float]:
        return {
            buffer: self._bytes(lines_of(first, last), buffer) for buffer, (_, first, last) in self._of(kind, programs)
        }

    def expanded(self, kind: str, programs: torch.Tensor, count: int) -> float:
        """Estimated bytes of distinct lines accessed by `count` programs, from some of them."""
        return sum(self.by_buffer(kind, programs, count).values())

    def by_buffer(self, kind: str, programs: torch.Tensor, count: int) -> dict[int, float]:
        """As `expanded`, of each buffer that is accessed; at most its size.

        Lines accessed by many programs count as all lines of their kind. Otherwise the model is G groups of programs of
        equal size, each accessing the same lines of a buffer (the tiles of a row share their rows of A); G is such that
        m programs are expected to touch G (1 - (1 - 1/G)^m) groups.
        """
        found, sampled = {}, programs.numel()
        if sampled == count:
            return self._different(kind, programs)
        for buffer, lines in self._of(kind, programs):
            depths, counts = multiplicities(lines)
            rare = depths < _COMMON
            each = float((depths * counts)[rare].sum()) / sampled
            lines_total = float(counts[~rare].sum())
            if each:
                lines_total += each * expand(float(counts[rare].sum()) / each, sampled, count)
            found[buffer] = self._bytes(lines_total, buffer)
        return found

    def unshared(self, kind: str, buffer: int, owners: torch.Tensor, lines: torch.Tensor) -> float:
        """Share of programs' lines that no other observed program accesses; 0 where none of the lines is observed."""
        if self._level:
            owners, lines, _ = self._sampled(buffer, (owners, lines, lines))
        found = dict(self._of(kind, None)).get(buffer)
        if found is None or not lines.numel():
            return 0.0
        programs, first, last = _apart(found)
        begun = torch.searchsorted(first.sort().values, lines, right=True)
        accessing = begun - torch.searchsorted(last.sort().values, lines)
        return float((accessing <= _among(owners, programs).long()).double().mean())

    def in_order(self, kind: str, programs: torch.Tensor) -> tuple[Lines, torch.Tensor]:
        """Runs of some programs, program by program in the order of accesses, and the numbers of these.

        Lines of different buffers differ. The first access that was added has number 0.
        """
        empty = torch.zeros(0, dtype=torch.int64)
        found = [(empty, empty, empty)]
        for (name, buffer), parts in self._runs.items():
            for owners, first, last in parts if name == kind else ():
                chosen = _among(owners & _OWNERS, programs)
                base = buffer << BASE_BITS >> _LINE_BITS
                found.append((owners[chosen], first[chosen] + base, last[chosen] + base))
        owners, first, last = (torch.cat(column) for column in zip(*found, strict=True))
        order = torch.argsort(((owners & _OWNERS) << (62 - _OWNER_BITS)) + (owners >> _OWNER_BITS), stable=True)
        return (owners[order] & _OWNERS, first[order], last[order]), owners[order] >> _OWNER_BITS

    def _of(self, kind: str, programs: torch.Tensor | None) -> list[tuple[int, Lines]]:
        """Runs of some programs by buffer, for buffers that have any."""
        by_buffer = []
        for (name, buffer), parts in self._runs.items():
            if name != kind:
                continue
            columns = [torch.cat(column) for column in zip(*parts, strict=True)]
            columns[0] = columns[0] & _OWNERS
            if programs is not None:
                chosen = _among(columns[0], programs)
                columns = [column[chosen] for column in columns]
            if columns[0].numel():
                by_buffer.append((buffer, tuple(columns)))
        return by_buffer

    def _bytes(self, lines: float, buffer: int) -> float:
        return min(lines * LINE_BYTES * (1 << self._level), float(self._memory.buffers[buffer].size))


def _among(owners: torch.Tensor, programs: torch.Tensor) -> torch.Tensor:
    """Which owners are among some programs: by a table, in less time than `torch.isin`, which sorts."""
    most = max((int(some.max()) for some in (owners, programs) if some.numel()), default=0)
    table = torch.zeros(1 + most, dtype=torch.bool)
    table[programs] = True
    return table[owners]


def _joined(lines: Lines) -> Lines:
    """Merge runs that overlap or follow each other."""
    owners, first, last = lines
    if not owners.numel():
        return lines
    goes_on = (owners[1:] == owners[:-1]) & (first[1:] >= first[:-1]) & (first[1:] <= last[:-1] + 1)
    goes_on &= last[1:] >= last[:-1]
    edge = torch.ones(1, dtype=torch.bool)
    begins, ends = torch.cat([edge, ~goes_on]), torch.cat([~goes_on, edge])
    return owners[begins], first[begins], last[ends]


def _apart(lines: Lines) -> Lines:
    """Runs in order, without lines that another run of the same program contains."""
    owners, first, last = lines
    low, span = int(first.min()), int(last.max()) - int(first.min()) + 2
    first, last = first - low + owners * span, last - low + owners * span
    order = torch.argsort(first)
    owners, first, last = owners[order], first[order], last[order]
    reached = torch.cummax(last, 0).values
    first[1:] = torch.maximum(first[1:], reached[:-1] + 1)
    kept = first <= last
    owners, first, last = owners[kept], first[kept], last[kept]
    return owners, first - owners * span + low, last - owners * span + low


def lines_of(first: torch.Tensor, last: torch.Tensor) -> float:
    """Number of distinct lines in runs."""
    _, first, last = _apart((torch.zeros_like(first), first, last))
    return float((last - first + 1).sum())


def multiplicities(lines: Lines) -> tuple[torch.Tensor, torch.Tensor]:
    """(programs, lines): how many lines are accessed by so many programs; for consecutive ranges of memory."""
    _, first, last = _apart(lines)
    places = torch.cat([first, last + 1])
    steps = torch.ones_like(places)
    steps[first.numel() :] = -1
    order = torch.argsort(places)
    depths, counts = steps[order].cumsum(0)[:-1], places[order].diff()
    return depths[depths > 0], counts[depths > 0]


def expand(different: float, sampled: int, count: int) -> float:
    """Expected number of distinct lines of `count` programs if `sampled` of them access `different`."""
    if sampled < 2 or different >= sampled - 0.25:  # nearly all lines are accessed by a single program
        return float(count)
    low, high = max(different, 1.0), 1e12
    for _ in range(80):
        middle = (low * high) ** 0.5
        if -math.expm1(sampled * math.log1p(-1 / max(middle, 1.0 + 1e-12))) * middle < different:
            low = middle
        else:
            high = middle
    return -math.expm1(count * math.log1p(-1 / max(high, 1.0 + 1e-12))) * high


BINS = 32
"""Of distances; each reaches from 1/sqrt(2) of its largest one. The largest of the first is all lines of a program."""
MOST_PROGRAMS = 8
_MOST_OBSERVED, _MOST_LINES = 1 << 16, 1 << 21
"""Of all programs together, with those that are read again; and of a single program, of which a part is observed."""
_OBSERVED_BITS = 3
_ROUND_BITS = 40
_FRACTION = 1 << 20


@dataclass(frozen=True)
class Reuse:
    """Of the lines of some programs."""

    again: tuple[float, ...] = ()  # lines that are read again ÷ distinct lines, by bins of distances; empty if none are
    new_rounds: float = 1.0  # share of rounds in which a program reads a line for the first time


def reuse_of(
    owners: torch.Tensor, first: torch.Tensor, last: torch.Tensor, rounds: torch.Tensor, seed: int, distances: bool
) -> Reuse:
    """`owners`, `first`, `last`, `rounds`: runs of lines with their programs and rounds, program by program in order.

    Lines that programs read again are counted by reuse distance: the distinct lines that a program reads in between. A
    cache that evicts what was used longest ago holds a line until as many others were read as it has room for (Mattson
    and others, Evaluation Techniques for Storage Hierarchies, IBM Systems Journal, 1970). Of many lines, those of
    random blocks are observed (Waldspurger and others, Efficient MRC Construction with SHARDS, FAST 2015). `seed`:
    determines which. Without `distances`, only rounds are counted.
    """
    times = last - first + 1
    _, programs, runs = torch.unique_consecutive(owners, return_inverse=True, return_counts=True)
    ends = times.cumsum(0)
    whole = ends[runs.cumsum(0) - 1] <= _MOST_OBSERVED  # by program
    fits = whole[programs] if bool(whole.any()) else (programs == 0) & (ends <= _MOST_LINES)
    first, times, which = first[fits], times[fits], fits.nonzero().squeeze(1)
    total = int(times.sum())
    lines = first.repeat_interleave(times) + torch.arange(total) - (times.cumsum(0) - times).repeat_interleave(times)
    which = which.repeat_interleave(times)
    if total > _MOST_OBSERVED:
        (odd,) = torch.randint(1 << 61, (1,), generator=torch.Generator().manual_seed(seed)).tolist()
        hashed = ((lines >> _OBSERVED_BITS) * (2 * odd + 1) >> 40) & (_FRACTION - 1)
        observed = hashed < _FRACTION * _MOST_OBSERVED // total
        which, lines = which[observed], lines[observed]
    if not lines.numel():
        return Reuse()
    programs = programs[which]
    before = _before(programs, lines)
    new, again = (before < 0), (before >= 0).nonzero().squeeze(1)
    places = (programs << _ROUND_BITS) + rounds[which]
    new_rounds = torch.unique(places[new]).numel() / torch.unique(places).numel()
    if not distances or not again.numel():
        return Reuse((), new_rounds)
    between = _earlier_not_greater(before)[again] - before[again] - 1
    share = (between + 1).double() / torch.bincount(programs[new])[programs[again]]
    bins = (-2 * share.clamp(max=1.0).log2()).floor().long().clamp(max=BINS - 1)
    return Reuse(tuple((torch.bincount(bins, minlength=BINS).double() / new.sum()).tolist()), new_rounds)


def _before(programs: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Where each line was read before by the same program; -1 where it was not."""
    keys, order = torch.sort(programs * (lines.max() + 1) + lines, stable=True)
    same = keys[1:] == keys[:-1]
    before = torch.full_like(keys, -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _earlier_not_greater(keys: torch.Tensor) -> torch.Tensor:
    """How many elements before each are not greater, by merging halves."""
    size = 1 << max(1, math.ceil(math.log2(keys.numel())))
    padded = torch.full((size,), size, dtype=torch.int64)
    padded[: keys.numel()] = keys
    counts, width = torch.zeros_like(padded), 1
    while width < size:
        halves = padded.view(-1, 2, width)
        left = halves[:, 0].sort(-1).values
        counts.view(-1, 2, width)[:, 1] += torch.searchsorted(left, halves[:, 1].contiguous(), right=True)
        width *= 2
    return counts[: keys.numel()]
