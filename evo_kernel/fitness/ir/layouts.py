"""Which threads have which elements of a tensor: Gluon's layouts, as the text of a module names them.

A layout is linear: each bit of the number of a register, a lane or a warp has a place, and the element at the sum of
the places of the set bits belongs to it. A text without layouts leaves them to the compiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from evo_kernel.fitness.ir.launch_traffic import SECTOR_BYTES
from evo_kernel.fitness.ir.types import Type

_VECTOR_BYTES = 16  # that a thread accesses at once
_MOST_EXPANDED = 2000  # characters
_ALIAS = re.compile(r"#\w+(?![\w.])")
_FIELD = re.compile(r"(\w+) = (\[[\d, \[\]]*\]|\d+)")
_UNKNOWN = "#"
_REGISTERS, _LANES, _WARPS = range(3)

_Places = list[tuple[int, ...]]
"""By bits, the lowest first; by axes. Zeros: this bit leads to the same element again."""
_Step = tuple[int, Sequence[int], Sequence[int]]
"""Of registers, lanes or warps: sizes by axes, and the axes, the fastest first."""


def expanded(type_: Type, aliases: Mapping[str, str]) -> str:
    """The layout of a tensor, without aliases; empty if it has none."""
    text = type_.encoding
    while "#" in text and len(text) <= _MOST_EXPANDED:
        wider = _ALIAS.sub(lambda found: aliases.get(found[0], ""), text)
        if wider == text:
            return text
        text = wider
    return text and _UNKNOWN


@lru_cache(maxsize=1024)
def elements_of_a_thread(encoding: str, shape: tuple[int, ...]) -> int:
    """How many elements each thread has: all of them in layouts that are not known here."""
    layout = _layout(encoding, shape)
    return 1 << len(layout[_REGISTERS]) if layout else math.prod(shape)


@lru_cache(maxsize=256)
def requests_of(encoding: str, shape: tuple[int, ...], item: int, axis: int | None = None) -> torch.Tensor:
    """Which request of a warp each element is part of: numbers of the tensor's shape. Each element is one of its own
    in layouts that are not known here.

    What a thread has side by side along `axis` may be one vector; by default along that of its first registers.
    """
    layout = _layout(encoding, shape)
    if layout is None:
        return torch.arange(math.prod(shape)).reshape(shape)
    if axis is None:
        axis = next((a for a in range(len(shape)) if tuple(int(b == a) for b in range(len(shape))) in layout[0]), 0)
    sides = [tuple(int(a == axis) << bit for a in range(len(shape))) for bit in range(20)]
    vector = [place for place in sides[: (_VECTOR_BYTES // item).bit_length() - 1] if place in layout[_REGISTERS]]
    if vector != sides[: len(vector)]:
        vector = []
    others = [place for place in layout[_REGISTERS] if place not in vector]
    bits = [(place, 0) for place in (*vector, *layout[_LANES])]
    bits += [(place, 1 << number) for number, place in enumerate((*others, *layout[_WARPS]))]
    places, numbers = torch.zeros(1, len(shape), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for place, number in bits:
        if any(place):
            places = torch.cat([places, places ^ torch.tensor(place)])
            numbers = torch.cat([numbers, numbers + number])
    requests = torch.zeros(shape, dtype=torch.int64)
    requests[tuple(places.T)] = numbers
    return requests


@lru_cache(maxsize=256)
def scattered(encoding: str, shape: tuple[int, ...], item: int, axis: int) -> float:
    """Sectors that warps ask for, request by request, where elements along `axis` lie side by side in memory, ÷ those
    that there are."""
    rows = requests_of(encoding, shape, item, axis).movedim(axis, -1).reshape(-1, shape[axis])
    sectors = torch.arange(shape[axis]) * item // SECTOR_BYTES
    asked = torch.unique((torch.arange(len(rows))[:, None] << 42) + (sectors << 21) + rows).numel()
    return asked / (len(rows) * int(sectors[-1] + 1))


@lru_cache(maxsize=256)
def fits_product(result: str, element: str) -> bool:
    """Whether a product's instruction has elements where the layout of its result says, which the compiler does not
    ask: wgmma has 16 rows for each of four warps, mma tiles of 16 x 8 (PTX ISA, matrix fragments)."""
    if "#ttg.nvidia_mma" not in result:
        return True
    fields = dict(_FIELD.findall(result))
    if fields.get("versionMajor") != "3":
        return element == "f64" or fields.get("instrShape", "").startswith("[16, 8")
    first = re.match(r"\[(\d+)", fields.get("warpsPerCTA", ""))
    return first is not None and int(first[1]) % 4 == 0


@lru_cache(maxsize=256)
def order_of_sums(encoding: str, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Distances along `axis` of the elements that a reduction combines, step by step: a tree of those of a thread, then
    lanes and warps, the highest bit of their numbers first. Empty where the layout is not known."""
    registers, lanes, warps = _layout(encoding, shape) or ((), (), ())
    steps = [place for place in (*registers, *reversed(lanes), *reversed(warps)) if place[axis]]
    distances = tuple(place[axis] for place in steps)
    straight = all(sum(map(bool, place)) == 1 for place in steps)
    return distances if straight and sorted(distances) == [1 << n for n in range(len(steps))] else ()


def _layout(encoding: str, shape: tuple[int, ...]) -> tuple[_Places, _Places, _Places] | None:
    """Places of the bits of registers, lanes and warps; None of unknown layouts, and where places are none of the
    tensor's. Registers that hold an element again count once."""
    try:
        layout = _read(encoding, shape)
    except (KeyError, IndexError, ValueError):  # the text is untrusted
        return None
    places = [place for part in layout or () for place in part if any(place)]
    inside = all(len(place) == len(shape) and all(map(int.__lt__, place, shape)) for place in places)
    if not layout or not inside or 1 << len(places) > math.prod(shape):
        return None
    return [place for place in layout[_REGISTERS] if any(place)], layout[_LANES], layout[_WARPS]


def _read(encoding: str, shape: tuple[int, ...]) -> tuple[_Places, _Places, _Places] | None:
    name, rank = encoding.partition("<")[0], len(shape)
    inner = encoding[encoding.find("parent = ") + 9 :]
    fields = {key: [int(n) for n in re.findall(r"\d+", text)] for key, text in _FIELD.findall(encoding)}
    if name == "#ttg.slice":
        (axis,) = fields["dim"][:1]
        parent = _layout(inner, (*shape[:axis], 1, *shape[axis:]))
        without = [[(*place[:axis], *place[axis + 1 :]) for place in part] for part in parent or ()]
        return (without[0], without[1], without[2]) if without else None
    if name == "#ttg.linear":
        numbers = [fields.get(key, []) for key in ("register", "lane", "warp")]
        registers, lanes, warps = ([tuple(part[n : n + rank]) for n in range(0, len(part), rank)] for part in numbers)
        return registers, lanes, warps
    steps = _steps(name, inner, fields)
    return _tiled(steps, shape) if steps else None


def _steps(name: str, inner: str, fields: Mapping[str, Sequence[int]]) -> list[_Step]:
    """The tile that the threads of a program have together; PTX ISA, matrix fragments for mma and wgmma."""
    if name == "#ttg.blocked":
        order = fields["order"]
        return [(_REGISTERS, fields["sizePerThread"], order), (_LANES, fields["threadsPerWarp"], order),
                (_WARPS, fields["warpsPerCTA"], order)]  # fmt: skip
    if name == "#ttg.nvidia_mma" and len(fields["warpsPerCTA"]) == 2:
        columns = fields["instrShape"][1] // 8
        return [(_REGISTERS, (1, 2), (1, 0)), (_LANES, (8, 4), (1, 0)), (_REGISTERS, (2, columns), (0, 1)),
                (_WARPS, fields["warpsPerCTA"], (0, 1))]  # fmt: skip
    if name == "#ttg.dot_op" and inner.startswith("#ttg.blocked"):  # each thread has the whole sum
        deep = (1, 1 << 20) if fields["opIdx"] == [0] else (1 << 20, 1)
        return [(_REGISTERS, deep, (0, 1)), *_steps("#ttg.blocked", "", fields)]
    if name == "#ttg.dot_op" and inner.startswith("#ttg.nvidia_mma") and len(fields["warpsPerCTA"]) == 2:
        left = fields["opIdx"] == [0]
        deep = (int(not left), int(left))  # axes: across, and along the sum
        across, along = (0, 1) if left else (1, 0)

        def sizes(over: int, down: int) -> tuple[int, int]:
            return (over, down) if left else (down, over)

        (width,), warps = fields.get("kWidth", [1]), fields["warpsPerCTA"]
        return [(_REGISTERS, sizes(1, width), deep), (_LANES, sizes(8, 4), (along, across)),
                (_REGISTERS, sizes(2 if left else 1, 2), (across, along)),
                (_WARPS, sizes(warps[across], 1), (across, along))]  # fmt: skip
    return []


def _tiled(steps: Sequence[_Step], shape: tuple[int, ...]) -> tuple[_Places, _Places, _Places]:
    """What exceeds the tensor leads to the same elements again; registers hold what the tile leaves out."""
    layout: tuple[_Places, _Places, _Places] = ([], [], [])
    reached = [1] * len(shape)
    for kind, sizes, order in (*steps, (_REGISTERS, shape, range(len(shape)))):
        for axis in order:
            for _ in range((sizes[axis] // (reached[axis] if sizes is shape else 1)).bit_length() - 1):
                place = reached[axis] if reached[axis] < shape[axis] else 0
                layout[kind].append(tuple(place * (a == axis) for a in range(len(shape))))
                reached[axis] *= 2
    return layout
