"""`Lanes`: the values of one IR name for all programs of a chunk.

The data of a value is a torch tensor whose first axis is programs, followed by the value's own axes. An axis along
which nothing changes may have size 1: splats, broadcasts, constants and values equal in all programs cost nothing.
Further representations keep real sizes cheap:

    sum       integers and addresses as a constant plus terms that each vary along few axes, added only when needed;
              a load whose terms are arithmetic progressions is a strided view of its buffer
    product   booleans as a conjunction of factors, so that a mask of rows and columns is not expanded
    undefined a boolean tensor that marks elements on which the program must not depend (LLVM's poison): lanes of a
              masked load without `other`, memory never written, division by zero
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evo_kernel.fitness.ir.types import Type

SMALL = 1 << 16
"""Largest tensor whose bounds are computed: for larger ones it costs more than it saves."""
MAX_TERMS = 8


@dataclass(slots=True, eq=False)
class Term:
    """Part of a sum: int64 data, bounds of its elements, and a common divisor of them. Immutable."""

    data: torch.Tensor
    low: int
    high: int
    unit: int = 1
    _progression: tuple[int, int, int] | bool | None = False  # not asked for yet
    _support: tuple[int, ...] | None = None

    @property
    def support(self) -> tuple[int, ...]:
        """Axes along which it varies."""
        if self._support is None:
            self._support = tuple([axis for axis, size in enumerate(self.data.shape) if size > 1])
        return self._support

    def progression(self) -> tuple[int, int, int] | None:
        """(axis, first element, step) if it is an arithmetic progression along one axis with a positive step."""
        if isinstance(self._progression, bool):
            self._progression = self._looked_at()
        return self._progression

    def _looked_at(self) -> tuple[int, int, int] | None:
        support = self.support
        if len(support) != 1:
            return None
        flat = self.data.reshape(-1)
        first, second = flat[:2].tolist()
        step = second - first
        if step <= 0 or self.high - self.low != step * (flat.numel() - 1):
            return None
        if flat.numel() > 2 and not bool((flat[1:] - flat[:-1] == step).all()):
            return None
        return support[0], first, step


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """constant + terms, as exact integers."""

    constant: int
    terms: tuple[Term, ...] = ()

    @property
    def low(self) -> int:
        return self.constant + sum(term.low for term in self.terms)

    @property
    def high(self) -> int:
        return self.constant + sum(term.high for term in self.terms)

    def plus(self, other: Sum) -> Sum:
        return Sum(self.constant + other.constant, _merged((*self.terms, *other.terms)))

    def times(self, factor: int) -> Sum:
        if factor == 0:
            return Sum(0)
        terms = []
        for term in self.terms:
            low, high = sorted((term.low * factor, term.high * factor))
            terms.append(Term(term.data * factor, low, high, abs(term.unit * factor)))
        return Sum(self.constant * factor, tuple(terms))

    def exact(self) -> Sum:
        """The sum with tight bounds: those of merged terms may be too wide."""
        return Sum(self.constant, tuple(term_of(term.data, term.unit) for term in self.terms))

    def data(self, rank: int) -> torch.Tensor:
        """The sum as an int64 tensor."""
        total = None
        for term in self.terms:
            total = term.data if total is None else total + term.data
        if total is None:
            return torch.full((1,) * (rank + 1), self.constant, dtype=torch.int64)
        return total + self.constant if self.constant else total


def term_of(data: torch.Tensor, unit: int = 1) -> Term:
    low, high = torch.aminmax(data)
    return Term(data, int(low), int(high), unit)


def sum_of(data: torch.Tensor) -> Sum:
    return Sum(int(data)) if data.numel() == 1 else sum_of_parts(separated(data))


def sum_of_parts(parts: Sequence[torch.Tensor]) -> Sum:
    terms = [term_of(part) for part in parts]
    constant = sum(term.low for term in terms if term.low == term.high)
    return Sum(constant, tuple(term for term in terms if term.low != term.high))


def separated(data: torch.Tensor) -> list[torch.Tensor]:
    """Parts that add up to the data and vary along one axis each; the data alone where it is no such sum."""
    axes = [axis for axis, size in enumerate(data.shape) if size > 1]
    if len(axes) < 2:
        return [data]
    first, last = (slice(0, 1),) * data.dim(), (slice(-1, None),) * data.dim()
    lines = [data[tuple(slice(None) if a == axis else slice(0, 1) for a in range(data.dim()))] for axis in axes]
    parts = [lines[0], *(line - data[first] for line in lines[1:])]
    if not torch.equal(functools.reduce(operator.add, (part[last] for part in parts)), data[last]):
        return [data]  # one element is quick to look at, and mostly enough
    return parts if torch.equal(functools.reduce(operator.add, parts), data) else [data]


def _merged(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Merge terms that vary along the same axes."""
    by_support: dict[tuple[int, ...], Term] = {}
    for term in terms:
        support = term.support
        if (known := by_support.get(support)) is not None:
            by_support[support] = _added(known, term)
        else:
            by_support[support] = term
    while len(by_support) > MAX_TERMS:
        (_, a), (_, b) = by_support.popitem(), by_support.popitem()
        combined = _added(a, b)
        by_support[combined.support] = combined
    return tuple(by_support.values())


def _added(a: Term, b: Term) -> Term:
    return Term(a.data + b.data, a.low + b.low, a.high + b.high, math.gcd(a.unit, b.unit))


class Lanes:
    """A value for all programs of a chunk. Immutable; other representations are cached when they are needed."""

    __slots__ = ("_data", "_factors", "_later", "_scalar", "_sum", "promised", "type", "undefined")

    def __init__(
        self,
        type_: Type,
        data: torch.Tensor | None = None,
        *,
        sum_: Sum | None = None,
        factors: tuple[torch.Tensor, ...] | None = None,
        later: Callable[[], tuple[torch.Tensor, ...]] | None = None,
        undefined: torch.Tensor | None = None,
    ) -> None:
        """One of `data`, `sum_`, `factors`, or `later`, which computes factors when needed."""
        self.type, self._data, self._sum, self._factors, self._later = type_, data, sum_, factors, later
        self.undefined = undefined
        self._scalar: int | bool | None = False  # not asked for yet
        self.promised: Lanes | None = None  # the value that the compiler assumes, if it differs (hint_checks.py)

    @property
    def data(self) -> torch.Tensor:
        """In the torch dtype of the type. Axes may have size 1 (see the module)."""
        if self._data is None:
            if self._sum is not None:
                self._data = self._sum.data(self.type.rank).to(self.type.dtype)
            else:
                factors = sorted(self.factors, key=lambda factor: factor.numel())
                whole = torch.ones((1,) * (self.type.rank + 1), dtype=torch.bool)
                self._data = functools.reduce(operator.and_, factors) if factors else whole
        return self._data

    @property
    def extents(self) -> torch.Size:
        """Of data and marks together: of lanes that load the same element, a mask may leave out some."""
        data, marks = self.data, self.undefined
        return data.shape if marks is None else torch.Size(np.broadcast_shapes(data.shape, marks.shape))

    @property
    def has_sum(self) -> bool:
        """Whether the sum is known, cheap to compute, or saves a larger tensor: of what does not vary along an axis."""
        return self._sum is not None or (
            self._data is not None and (self._data.numel() <= SMALL or self._is_thin(self._data))
        )

    def _is_thin(self, data: torch.Tensor) -> bool:
        """Whether it does not vary along an axis: with a value that does, the whole would be a larger tensor."""
        return any(of_data < of_type for of_data, of_type in zip(data.shape[1:], self.type.shape or (), strict=True))

    @property
    def sum(self) -> Sum:
        """Of an integer or an address."""
        if self._sum is None:
            self._sum = sum_of(self.data.long())
        return self._sum

    @property
    def factors(self) -> tuple[torch.Tensor, ...]:
        """Of a boolean; none if it is true everywhere."""
        if self._factors is None and self._later is not None:
            self._factors, self._later = self._later(), None
        if self._factors is None:
            data = self.data
            if data.numel() <= SMALL and bool(data.all()):
                self._factors = ()
            else:
                self._factors = (data,)
        return self._factors

    @property
    def programs(self) -> int:
        """Size of the axis of programs: 1 if all have the same value."""
        return max((t.shape[0] for t in self.tensors()), default=1)

    def tensors(self) -> Iterable[torch.Tensor]:
        """All tensors that hold its data."""
        if self._data is not None:
            yield self._data
        elif self._sum is not None:
            yield from (term.data for term in self._sum.terms)
        else:
            yield from self.factors
        if self.undefined is not None:
            yield self.undefined

    @property
    def is_nothing(self) -> bool:
        """Whether it is known to be undefined everywhere."""
        return self.undefined is not None and self.undefined.numel() == 1 and bool(self.undefined)

    def integer(self) -> int | None:
        """The number that it has in all programs; None if they differ."""
        if self._sum is not None:
            return self._sum.constant if not self._sum.terms else None
        if self.data.numel() == 1 or self.data.numel() <= SMALL:
            total = self.sum
            return total.constant if not total.terms else None
        return None

    @property
    def scalar(self) -> int | None:
        """The number that a defined integer without axes has in all programs; None if they differ, or of others."""
        if self._scalar is False:
            self._scalar = self._asked()
        return self._scalar

    def _asked(self) -> int | None:
        if type(self) is not Lanes or self.type.shape is not None or not self.type.is_integer:
            return None
        if self.undefined is not None or self.promised is not None:
            return None
        if self._sum is not None:
            return None if self._sum.terms else self._sum.constant
        if self._data is None and not self.factors:
            return 1
        return int(self.data) if self.data.numel() == 1 else None

    def boolean(self) -> bool | None:
        """The constant value of a boolean; None if it varies."""
        factors = self.factors
        if not factors:
            return True
        if any(factor.numel() <= SMALL and not bool(factor.any()) for factor in factors):
            return False
        return None

    def alone(self) -> Lanes:
        """The value without the one that the compiler assumes."""
        return self if self.promised is None else self.taken_for(None)

    def taken_for(self, promised: Lanes | None) -> Lanes:
        """The value with another one that the compiler assumes."""
        lanes = Lanes(self.type, self._data, sum_=self._sum, factors=self._factors, later=self._later)
        lanes.undefined, lanes.promised = self.undefined, promised
        return lanes

    def rows(self, index: torch.Tensor) -> Lanes:
        """The value for some programs."""
        if self.scalar is not None:
            return self
        lanes = self._rows(index)
        return lanes if self.promised is None else lanes.taken_for(self.promised.rows(index))

    def _rows(self, index: torch.Tensor) -> Lanes:
        def picked(data: torch.Tensor) -> torch.Tensor:
            return data if data.shape[0] == 1 else data[index]

        undefined = None if self.undefined is None else picked(self.undefined)
        if self._data is not None:
            return Lanes(self.type, picked(self._data), undefined=undefined)
        if self._sum is not None:
            terms = tuple(
                term if term.data.shape[0] == 1 else term_of(term.data[index], term.unit) for term in self._sum.terms
            )
            constant = self._sum.constant + sum(t.low for t in terms if t.data.numel() == 1)
            kept = tuple(t for t in terms if t.data.numel() > 1)
            return Lanes(self.type, sum_=Sum(constant, kept), undefined=undefined)
        return Lanes(self.type, later=lambda: tuple(map(picked, self.factors)), undefined=undefined)

    def reshaped(self, type_: Type, change: Reshape) -> Lanes:
        """A view of the same elements: `change` inserts, drops or permutes axes of every tensor."""
        undefined = None if self.undefined is None else change(self.undefined)
        if self._data is not None and self._sum is None:
            return Lanes(type_, change(self._data), undefined=undefined)
        if self._sum is not None:
            terms = tuple(Term(change(t.data), t.low, t.high, t.unit) for t in self._sum.terms)
            return Lanes(type_, sum_=Sum(self._sum.constant, terms), undefined=undefined)
        return Lanes(type_, later=lambda: tuple(map(change, self.factors)), undefined=undefined)

    def marks(self, shape: Sequence[int]) -> torch.Tensor:
        """Where it is undefined, with all sizes of a shape."""
        return (torch.zeros(1, dtype=torch.bool) if self.undefined is None else self.undefined).expand(tuple(shape))

    def full(self, programs: int = 1) -> torch.Tensor:
        """Data with the true size of every own axis, for at least `programs` programs."""
        data = self.data
        shape = (max(data.shape[0], programs), *(self.type.shape or ()))
        return data if tuple(data.shape) == shape else data.expand(shape)


class AddressWord(Lanes):
    """Integers that may be addresses, whose values differ from run to run: as numbers these are undefined.

    `word` is undefined where it is no address, `number` where it is one. Only what knows this class may use addresses:
    tt.int_to_ptr makes them pointers again, integers may be added, two may be subtracted, and none is 0.
    """

    __slots__ = ("number", "word")

    def __init__(self, word: Lanes, number: Lanes) -> None:
        super().__init__(number.type, number.data, undefined=number.undefined)
        self.word, self.number = word, number

    @property
    def is_nothing(self) -> bool:
        return False

    def tensors(self) -> Iterable[torch.Tensor]:
        return (*self.word.tensors(), *self.number.tensors())

    def rows(self, index: torch.Tensor) -> AddressWord:
        return AddressWord(self.word.rows(index), self.number.rows(index))

    def reshaped(self, type_: Type, change: Reshape) -> AddressWord:
        return AddressWord(self.word.reshaped(type_, change), self.number.reshaped(type_, change))


def as_address(value: Lanes) -> Lanes:
    """An integer where it is an address; undefined elsewhere."""
    return value.word if isinstance(value, AddressWord) else nothing(value.type)


def as_number(value: Lanes) -> Lanes:
    """An integer where it is no address; undefined elsewhere."""
    return value.number if isinstance(value, AddressWord) else value


@functools.lru_cache(maxsize=1024)
def zeros(type_: Type) -> Lanes:
    """A value that is 0 everywhere."""
    return Lanes(type_, torch.zeros((1,) * (type_.rank + 1), dtype=torch.float32).to(type_.dtype))


def nothing(type_: Type) -> Lanes:
    """A value that is undefined everywhere."""
    value = zeros(type_)
    return Lanes(type_, value.data, undefined=torch.ones(value.data.shape, dtype=torch.bool))


def taken(data: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
    """Elements along an axis by index; 8-bit floats are selected as integers, because torch cannot index them."""
    if data.is_floating_point() and data.element_size() == 1:
        return data.view(torch.int8).index_select(axis, index).view(data.dtype)
    return data.index_select(axis, index)


Reshape = Callable[[torch.Tensor], torch.Tensor]
"""A change of the axes after the axis of programs."""


def any_marked(*marks: torch.Tensor | None) -> torch.Tensor | None:
    """Where any of several marks is set; None if there are none."""
    given = [mark for mark in marks if mark is not None]
    return functools.reduce(operator.or_, given) if given else None


def any_undefined(values: Sequence[Lanes]) -> torch.Tensor | None:
    """Where any of several values is undefined; None if none is."""
    return any_marked(*(value.undefined for value in values))
