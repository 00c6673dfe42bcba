"""Task cards: a task as agents see it, without its hidden cases."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class CaseKind(enum.StrEnum):
    CHECK = "check"  # small, any machine
    SEARCH = "search"  # steers evolution
    CONFIRM = "confirm"  # hidden from agents; judges champions


@dataclass(frozen=True)
class CaseCard:
    """A case as agents see it."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, Any] = field(hash=False)
    inputs: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()  # (dtype, shape, strides) per tensor input
    flops: float | None = None  # that the computation needs; None where the task does not say
    moved: float | None = None  # bytes that must move at least; None where the task does not say


@dataclass(frozen=True)
class TaskCard:
    """A task as agents see it: never the confirm cases, never the drawn inputs."""

    name: str
    reference: str  # source text of the task file
    allow: str  # "kernels" or "mixed"
    precision: str  # "ieee" | "tf32": what fp32 contractions may use
    atomics: bool  # whether two runs may differ in the last bits
    cases: tuple[CaseCard, ...]  # check and search
    description: str = ""

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> TaskCard:
        """From what `dataclasses.asdict` and JSON make of one."""
        cases = []
        for case in data["cases"]:
            inputs = tuple((dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in case["inputs"])
            cases.append(CaseCard(**{**case, "kind": CaseKind(case["kind"]), "inputs": inputs}))
        return TaskCard(**{**data, "cases": tuple(cases)})
