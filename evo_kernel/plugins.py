"""Extensions by entry point: an installed package can add operators and tasks without changing this one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from evo_kernel.errors import UserError

OPERATORS, TASKS = "evo_kernel.operators", "evo_kernel.tasks"


def found(group: str) -> Mapping[str, EntryPoint]:
    """Entry points of a group by name, not loaded yet."""
    return {point.name: point for point in entry_points(group=group)}


def load(group: str, name: str) -> object:
    """Load one extension. Raises UserError when there is none of that name, or it does not import."""
    points = found(group)
    if name not in points:
        raise UserError(
            f"no installed package offers {name!r} in {group}; found: {', '.join(sorted(points)) or 'none'}."
        )
    try:
        return points[name].load()
    except ImportError as error:
        raise UserError(f"the extension {name!r} ({points[name].value}) does not import: {error}") from error
