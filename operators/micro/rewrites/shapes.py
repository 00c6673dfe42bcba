"""Shapes of the values in a kernel, read off its expressions."""

from __future__ import annotations

import ast

from operators.micro.rewrites.blocks import Reader
from operators.micro.syntax import argument, called, int_value, spell

Shape = tuple[str, ...]  # sizes as they are spelled; "1" where a dimension was added
POINTWISE = ("tl.exp", "tl.exp2", "tl.log", "tl.log2", "tl.sqrt", "tl.rsqrt", "tl.abs", "tl.where", "tl.maximum")
POINTWISE += ("tl.minimum", "tl.sigmoid", "tl.fma", "tl.floor", "tl.ceil", "tl.cos", "tl.sin", "tl.erf", "tl.clamp")
MADE = ("tl.zeros", "tl.full")
DEEPEST = 40


def shape_of(reader: Reader, node: ast.expr, depth: int = 0) -> Shape | None:
    """The shape of a value, () for a scalar; None when it cannot be told."""
    if depth > DEEPEST:
        return None
    if isinstance(node, ast.Constant) or reader.is_scalar(node):
        return ()
    if isinstance(node, ast.Name):
        return _named(reader, node.id, depth)
    if isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp | ast.BoolOp):
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return broadcast([shape_of(reader, part, depth + 1) for part in parts])
    if isinstance(node, ast.Subscript):
        inner = shape_of(reader, node.value, depth + 1)
        return _indexed(inner, spell(node.slice)) if inner is not None else None
    return _called(reader, node, depth) if isinstance(node, ast.Call) else None


def _named(reader: Reader, name: str, depth: int) -> Shape | None:
    if any(p.name == name for p in reader.kernel.parameters):
        return ()
    places = reader.kernel.definitions.get(name, ())
    earlier = [place for place in places if place in reader.suite and place.lineno < reader.line]
    if earlier:
        last = earlier[-1]
        plain = isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name)
        return shape_of(Reader(reader.kernel, last), last.value, depth + 1) if plain else None  # type: ignore[attr-defined]
    # from an enclosing suite, perhaps assigned several times: loops keep the shape of what came first
    first = places[0] if places else None
    if isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name) and first.lineno < reader.line:
        return shape_of(Reader(reader.kernel, first), first.value, depth + 1)
    return None


def _indexed(inner: Shape, index: str) -> Shape | None:
    if index.strip("()") == ":, None" and len(inner) == 1:
        return (inner[0], "1")
    return ("1", inner[0]) if index.strip("()") == "None, :" and len(inner) == 1 else None


def _called(reader: Reader, node: ast.Call, depth: int) -> Shape | None:
    name, shapes = called(node), [shape_of(reader, part, depth + 1) for part in node.args]
    if name == "tl.arange":
        return (spell(node.args[1]),)
    if name in MADE:
        sizes = argument(node, "shape", 0)
        return tuple(spell(size) for size in sizes.elts) if isinstance(sizes, ast.Tuple | ast.List) else None
    if name == "tl.load":
        return shapes[0]
    if name == "float":
        return ()
    if name in ("tl.sum", "tl.max", "tl.min"):
        axis = int_value(argument(node, "axis", 1))
        inner = shapes[0]
        if inner is None or axis is None or not 0 <= axis < len(inner):
            return None
        return tuple(size for place, size in enumerate(inner) if place != axis)
    if name == "tl.dot" and shapes[0] is not None and shapes[1] is not None and len(shapes[0]) == len(shapes[1]) == 2:
        return (shapes[0][0], shapes[1][1])
    if name == "tl.trans" and shapes[0] is not None and len(shapes[0]) == 2:
        return (shapes[0][1], shapes[0][0])
    if name in POINTWISE:
        return broadcast(shapes)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return shape_of(reader, node.func.value, depth + 1)
    return None


def broadcast(shapes: list[Shape | None]) -> Shape | None:
    """The common shape; None when one is unknown or two sizes differ in spelling."""
    rank = max((len(shape) for shape in shapes if shape is not None), default=0)
    found = ["1"] * rank
    for shape in shapes:
        if shape is None or len(shape) not in (0, rank):
            return None
        for place, size in enumerate(shape):
            if size != "1" and found[place] not in ("1", size):
                return None
            found[place] = size if size != "1" else found[place]
    return tuple(found)
