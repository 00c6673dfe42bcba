"""Keeps the latest used values by key, within a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The latest used values, as many as weigh no more than `limit` together; the last one always. Not thread-safe."""

    def __init__(self, limit: int, weigh: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit, self._weigh = limit, weigh
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def __getitem__(self, key: Key) -> Value:
        self._kept.move_to_end(key)
        return self._kept[key]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._kept.values())

    def find(self, key: Key, make: Callable[[], Value]) -> Value:
        return self[key] if key in self else self.put(key, make())

    def get(self, key: Key) -> Value | None:
        return self[key] if key in self._kept else None

    def put(self, key: Key, value: Value) -> Value:
        self.drop(key)
        self._kept[key] = value
        self._weight += self._weigh(value)
        while self._weight > self._limit and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))
        return value

    def drop(self, key: Key) -> None:
        """Forget a value, where it is kept."""
        if key in self._kept:
            self._weight -= self._weigh(self._kept.pop(key))

    def clear(self) -> None:
        self._kept.clear()
        self._weight = 0
