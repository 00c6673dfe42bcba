"""A store of turns and memories for runs that are not to be resumed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evo_kernel.types import Call


class Forgetful:
    """A store for a run that is not to be resumed: turns are dropped, memories live as long as the process."""

    keeps_calls = False

    def __init__(self, most: int = 1000) -> None:
        self._memories: dict[tuple[int, str], tuple[Mapping[str, Any], float]] = {}
        self._most = most

    def append(
        self,
        attempt: int,
        kind: str,
        data: Mapping[str, Any],
        calls: Sequence[Call] = (),
        charged: Mapping[str, int] | None = None,
        gpu_s: float = 0.0,
    ) -> None:
        pass

    def turns(self, attempt: int) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return ()

    def remember(self, attempt: int, kind: str, data: Mapping[str, Any]) -> None:
        self._memories.setdefault((attempt, kind), (data, time.time()))
        while len(self._memories) > self._most:
            self._memories.pop(next(iter(self._memories)), None)

    def memories(self, limit: int) -> Sequence[tuple[int, str, Mapping[str, Any], float]]:
        found = [(attempt, kind, data, at) for (attempt, kind), (data, at) in self._memories.items()]
        return found[-limit:]
