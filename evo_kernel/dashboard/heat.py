"""The archive as a table: what kinds of kernels there are, and how fast the fastest of each is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from populations.overview import Cell

STEPS = 9  # shades, 0 to 8


@dataclass(frozen=True)
class HeatCell:
    elite: int
    score: float | None
    candidates: int
    heat: int


@dataclass(frozen=True)
class HeatMap:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]


def heat_map(cells: Sequence[Cell]) -> HeatMap:
    """Rows: tensor cores and data path; columns: schedule and launches; only those that occur."""
    split = {cell.name: _split(cell.name) for cell in cells}
    rows = sorted({row for row, _ in split.values()})
    columns = sorted({column for _, column in split.values()})
    logs = [math.log(cell.score) for cell in cells if cell.score]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    placed = {split[cell.name]: _heated(cell, low, high) for cell in cells}
    return HeatMap(tuple(columns), tuple((row, tuple(placed.get((row, column)) for column in columns)) for row in rows))


def _split(name: str) -> tuple[str, str]:
    core, path, schedule, launches = [*name.split("/"), "", "", ""][:4]
    cores = "no tensor cores" if core == "none" else core
    return f"{cores}, {path}", f"{schedule}, {launches}{'+' if launches == '3' else ''}"


def _heated(cell: Cell, low: float, high: float) -> HeatCell:
    share = (math.log(cell.score) - low) / (high - low) if cell.score and high > low else 0.5
    return HeatCell(cell.elite, cell.score, cell.candidates, round(share * (STEPS - 1)))
