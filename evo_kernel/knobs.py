"""A setting of the knobs, written into a source: `apply_knobs`, and where in the text knobs stand.

A knob is a module-level integer constant (`BLOCK_M = 64`), or the choice among a kernel's autotune configurations
(`kernel.config`). Which of them the tuner sets, and to what, is for fitness/tuning/proposals.py.
"""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_module
from evo_kernel.types import Knobs, Source


def apply_knobs(source: Source, knobs: Knobs) -> Source:
    """The source with every named constant set, and autotune lists cut to the chosen configuration."""
    if not knobs:
        return source
    wanted = dict(knobs)
    tree = parse_module(source.text)
    edits = [(node, str(wanted[name])) for name, _, node in constants(tree) if name in wanted]
    edits += [
        (node, f"({ast.get_source_segment(source.text, node)})[{wanted[key]}:{wanted[key] + 1}]")
        for key, node in _autotune_lists(tree)
        if key in wanted
    ]
    return Source(_replace(source.text, edits), source.language)


def knob_names(source: Source) -> tuple[str, ...]:
    """What `apply_knobs` can set in a source, in its order; nothing in text that is not Python."""
    try:
        tree = parse_module(source.text)
    except (SyntaxError, ValueError):
        return ()
    return (*(name for name, _, _ in constants(tree)), *(key for key, _ in _autotune_lists(tree)))


def constants(tree: ast.Module) -> list[tuple[str, int, ast.expr]]:
    """(name, value, node of the value) of each module-level `NAME = <int>` with an upper-case name."""
    found = []
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() as value) as place):
                if name.isupper() and not isinstance(value, bool):
                    found.append((name, value, place))
    return found


def _autotune_lists(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    found = []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("autotune"):
                values = [k.value for k in decorator.keywords if k.arg == "configs"] or decorator.args[:1]
                found += [(f"{node.name}.config", value) for value in values]
    return found


def _replace(text: str, edits: list[tuple[ast.expr, str]]) -> str:
    """Put new text in place of syntax nodes. Columns in `ast` are UTF-8 bytes."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = b"".join(lines)
    spans = [
        (starts[n.lineno - 1] + n.col_offset, starts[(n.end_lineno or n.lineno) - 1] + (n.end_col_offset or 0), new)
        for n, new in edits
    ]
    for start, end, new in sorted(spans, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()
