"""Finds the knobs of a source: which numbers the tuner may set, and to which values.

A knob is a module-level integer constant that a launch uses (`BLOCK_M = 64`), or the choice among a kernel's autotune
configurations (`kernel.config`). Everything else is structure, which strategies change.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.knobs import constants
from evo_kernel.syntax import parse_module
from evo_kernel.types import Source

_POWERS = (1, 2, 4, 8, 16)
_BY_ENDING = {
    "WARPS": _POWERS, "STAGES": (1, 2, 3, 4, 5), "GROUP(_[A-Z])?": _POWERS, "SPLIT(_[A-Z])?": _POWERS,
}  # fmt: skip
"""The suffix of a constant's name tells its meaning, ignoring a number: before it may stand the kernel's name
(`GROUP_NORM_BLOCK` is a tile)."""
_COUNTS = (*_BY_ENDING, "PROGRAMS(_PER_SM)?", r"[^_]*\.config")
_ROWS = "ROWS(_PER_[A-Z]+)?"


@dataclass(frozen=True)
class Knob:
    """One knob with its current value and the values to try, which include it."""

    name: str
    value: int
    choices: tuple[int, ...]


def find_knobs(source: Source, configs: dict[str, int] | None = None) -> tuple[Knob, ...]:
    """Knobs of a source, in order of appearance. `configs`: autotune configurations by kernel, from the recorder."""
    tree = parse_module(source.text)
    used = _launched_names(tree)
    knobs = [
        Knob(name, value, _choices(name, value))
        for name, value, _ in constants(tree)
        if name in used and len(_choices(name, value)) > 1
    ]
    knobs += [Knob(f"{k}.config", 0, tuple(range(n))) for k, n in sorted((configs or {}).items()) if n > 1]
    return tuple(knobs)


@dataclass(frozen=True)
class KnobGroup:
    """Knobs that are tuned together: those of one kernel, or of several kernels that share some."""

    knobs: tuple[Knob, ...]
    kernels: frozenset[str]  # names of the functions; empty: no launch takes these knobs directly


def knob_groups(source: Source, knobs: Sequence[Knob]) -> tuple[KnobGroup, ...]:
    """Group knobs by the launches that take them, in order of appearance.

    Times of kernels that run one after another add up, so one kernel's best setting does not depend on another's knobs.
    """
    taken: dict[str, set[str]] = {knob.name: set() for knob in knobs}
    for node in ast.walk(parse_module(source.text)):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=kernel))):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                for name in names & taken.keys():
                    taken[name].add(kernel)
    for name, kernels in taken.items():
        if name.endswith(".config"):
            kernels.add(name.removesuffix(".config"))
    groups: list[tuple[list[Knob], set[str]]] = []
    for knob in knobs:
        kernels = taken[knob.name]
        shared = [group for group in groups if group[1] & kernels or not (group[1] or kernels)]
        merged = [knob for group in shared for knob in group[0]]
        groups = [group for group in groups if group not in shared]
        groups.append(([*merged, knob], set().union(kernels, *(group[1] for group in shared))))
    if len(groups) == 2 and any(
        not kernels for _, kernels in groups
    ):  # with one kernel, knobs that no launch takes belong to it
        groups = [([knob for members, _ in groups for knob in members], set().union(*(k for _, k in groups)))]
    order = {knob.name: number for number, knob in enumerate(knobs)}
    knob_sets = [
        KnobGroup(tuple(sorted(members, key=lambda knob: order[knob.name])), frozenset(kernels))
        for members, kernels in groups
    ]
    return tuple(sorted(knob_sets, key=lambda group: order[group.knobs[0].name]))


def _launched_names(tree: ast.Module) -> set[str]:
    """Names read outside jitted functions: a constant that only a kernel reads is not set at launch."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not _is_jitted(node):
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def _choices(name: str, value: int) -> tuple[int, ...]:
    for ending, choices in _BY_ENDING.items():
        if _ends(name, ending):
            return tuple(sorted({*choices, value}))
    if value in _POWERS and _ends(name, _ROWS):
        return _POWERS
    if value < 1 or value & (value - 1):
        return (value,)
    return tuple(s for s in (value // 4, value // 2, value, value * 2, value * 4, value * 8) if s >= min(16, value))


def is_tile(name: str) -> bool:
    """Whether a knob is a tile size, by its name."""
    return not any(_ends(name, ending) for ending in _COUNTS)


def _ends(name: str, ending: str) -> bool:
    return re.search(rf"(^|_)({ending})(_?\d+)?$", name) is not None
