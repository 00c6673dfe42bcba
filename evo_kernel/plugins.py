"""Extensions by entry point: an installed package adds operators, policies and tasks without changing this one.

    [project.entry-points."evo_kernel.operators"]     a callable without arguments that makes an Operator
    [project.entry-points."evo_kernel.policies"]      a callable without arguments that makes a Policy
    [project.entry-points."evo_kernel.tasks"]         a callable that returns the path of a task file, or that path

What a configuration does not name is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from evo_kernel.errors import UserError

OPERATORS, POLICIES, TASKS = "evo_kernel.operators", "evo_kernel.policies", "evo_kernel.tasks"


def found(group: str) -> Mapping[str, EntryPoint]:
    """Entry points of a group by name, not loaded yet."""
    return {point.name: point for point in entry_points(group=group)}


def load(group: str, name: str, own: Sequence[str] = ()) -> object:
    """Load one extension. Raises UserError when there is none of that name, or it does not import.

    `own`: names that need no extension, for whoever misspelt one of them.
    """
    points = found(group)
    if name not in points:
        built_in = f"{name!r} is none of {', '.join(own)}, and " if own else ""
        raise UserError(
            f"{built_in}no installed package offers {name!r} in {group}; found: {', '.join(sorted(points)) or 'none'}."
        )
    try:
        return points[name].load()
    except ImportError as error:
        raise UserError(f"the extension {name!r} ({points[name].value}) does not import: {error}") from error


def factory(group: str, name: str, own: Sequence[str] = ()) -> Callable[[], Any]:
    """An extension that makes something; see `load`. Raises UserError when it is not callable."""
    made = load(group, name, own)
    if not callable(made):
        raise UserError(f"the extension {name!r} of {group} is a {type(made).__name__}: it must be a callable.")
    return made
