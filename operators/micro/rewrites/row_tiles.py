"""`rows-per-program`: one program takes ROWS rows, as a tile [ROWS, BLOCK].

What was one number a row becomes [ROWS, 1] and what was a block of a row becomes [ROWS, BLOCK]; rows past the end are
masked. (One row after the other, in a loop, was no better anywhere in 288 transitions of the shipped tree.)
"""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_expression, parse_module
from evo_kernel.types import TaskCard
from operators.micro.host_code import launches_for
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.flat import ROW
from operators.micro.rewrites.grids import followed
from operators.micro.rewrites.rows import is_straight
from operators.micro.syntax import argument, called, copy_of, names_read, names_written, spell

ROWS = (*ROW, *(f"{index}.to(tl.int64)" for index in ROW))
"""How a kernel may say which row is its program's."""
DEFAULT_ROWS = 4
REDUCTIONS = ("tl.sum", "tl.max", "tl.min")
ELEMENTWISE = (
    "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "abs", "sin", "cos", "erf", "floor", "ceil", "sigmoid", "maximum",
    "minimum", "where", "fma", "math",
)  # fmt: skip
MIN_PROGRAMS = 2048  # fewer rows leave the GPU idle when they are taken several at a time


class RowsPerProgram(Rewrite):
    name, family, form = "rows-per-program", "tiling", "form"
    lacks = "does not run one program a row, or has code that does not widen to several"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        return ("tile",)

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> tuple[str, str, str] | None:
        """The new body, its names of the rows a program takes and of all rows."""
        if form != "tile" or not _is_by_rows(module, kernel):
            return None
        rows, count = kernel.fresh("ROWS"), kernel.fresh("n_rows")
        try:
            return _Widen(kernel, rows, count).text(), rows, count
        except _Unclear:
            return None

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: tuple[str, str, str]) -> bool:
        seen = [one.grid[0] for one in launches_for(module, task, kernel) if one.grid]
        return not seen or any(not isinstance(size, int) or size >= MIN_PROGRAMS for size in seen)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: tuple[str, str, str]) -> str:
        body, rows, count = found
        knob = module.fresh(f"{kernel.name.removesuffix('_kernel').upper()}_ROWS")
        edits = [
            module.replace_range(kernel.body[0], kernel.body[-1], body),
            module.add_parameters(kernel.node, f"{count}, {rows}: tl.constexpr"),
            module.set_constant(knob, DEFAULT_ROWS),
        ]
        for launch in module.launches_of(kernel.name):
            size = spell(launch.grid[0])
            edits.append(module.replace(launch.grid[0], f"triton.cdiv({size}, {knob})"))
            edits.append(module.add_arguments(launch.call, f"{count}={size}, {rows}={knob}"))
        return module.edited(edits)


def _is_by_rows(module: KernelModule, kernel: SourceKernel) -> bool:
    """Whether a kernel launched on a grid of rows uses its index once only: `row = tl.program_id(0)`."""
    calls = kernel.calls("tl.program_id", "tl.num_programs")
    launches = module.launches_of(kernel.name)
    places = [s for s in kernel.body if isinstance(s, ast.Assign) and spell(s.value) in ROWS]
    if len(calls) != 1 or len(places) != 1 or not launches or any(len(launch.grid) != 1 for launch in launches):
        return False
    plain = all(isinstance(launch.grid[0], ast.Name | ast.Subscript | ast.BinOp) for launch in launches)
    early = any(isinstance(p, ast.Return | ast.While) for p in ast.walk(kernel.node))
    index = kernel.body.index(places[0])
    name = next(iter(names_written(places[0])))
    tiled = any(
        isinstance(p, ast.BinOp) and isinstance(p.op, ast.Mult) and name in (spell(p.left), spell(p.right))
        and set(kernel.constexprs) & {spell(p.left), spell(p.right)}
        for p in ast.walk(kernel.node)
    )  # fmt: skip
    first = all(not names_read(s) & {name} for s in kernel.body[:index])
    once = len(kernel.definitions[name]) == 1
    return plain and not early and first and once and not tiled


class _Unclear(Exception):
    """Code whose shape the widening does not know."""


class _Widen(ast.NodeTransformer):
    """Makes everything two-dimensional: rows first."""

    def __init__(self, kernel: SourceKernel, rows: str, count: str) -> None:
        self.kernel, self.rows = kernel, rows
        row = next(s for s in kernel.body if isinstance(s, ast.Assign) and spell(s.value) in ROWS)
        self.row = spell(row.targets[0])
        self.check = f"{self.row} < {count}"
        loops = [loop for loop in kernel.loops if not loop.outer]
        self.carried = {n for loop in loops for n in names_written(*loop.node.body)}
        bodies = [[s for s in kernel.body if not isinstance(s, ast.For)], *(loop.node.body for loop in loops)]
        moving = any(names_read(loop.node.iter) & set(kernel.definitions) for loop in loops)
        if len(loops) != len(kernel.loops) or moving or not all(map(is_straight, bodies)):
            raise _Unclear

    def text(self) -> str:
        return "\n".join(spell(self.visit(copy_of(s))) for s in self.kernel.body)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if spell(node.value) in ROWS:
            text = f"{self.row} = ({spell(node.value)} * {self.rows} + tl.arange(0, {self.rows}))[:, None]"
            return parse_module(text).body[0]
        target = spell(node.targets[0])
        literal = isinstance(node.value, ast.Constant | ast.UnaryOp) or called(node.value) == "float"
        if literal and target in self.carried:
            shape = f"tl.full([{self.rows}, 1], {spell(node.value)}, tl.float32)"
            if isinstance(node.value, ast.Constant) and not isinstance(node.value.value, float):
                raise _Unclear
            return parse_module(f"{target} = {shape}").body[0]
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        raise _Unclear

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = called(node)
        if name == "tl.arange":
            return parse_expression(f"{spell(node)}[None, :]")
        self.generic_visit(node)
        if name in ("tl.zeros", "tl.full"):
            shape = argument(node, "shape", 0)
            if not isinstance(shape, ast.List | ast.Tuple) or len(shape.elts) != 1 or not node.args:
                raise _Unclear
            tile = ast.List([ast.Name(self.rows, ast.Load()), shape.elts[0]], ast.Load())
            return ast.Call(node.func, [tile, *node.args[1:]], node.keywords)
        if name in REDUCTIONS or name == "tl.reduce":
            axis, combiner = argument(node, "axis", 1), argument(node, "combine_fn", 2)
            given = len(node.args) + len(node.keywords)
            if axis is None or spell(axis) != "0" or given != (2 if name in REDUCTIONS else 3) or not node.args:
                raise _Unclear
            by = "" if name in REDUCTIONS or combiner is None else f", combine_fn={spell(combiner)}"
            return parse_expression(f"{name}({spell(node.args[0])}, axis=1{by}, keep_dims=True)")
        if name in ("tl.load", "tl.store"):
            return self._masked(node, 1 if name == "tl.load" else 2)
        method = isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        known = name.split(".")[1] in ELEMENTWISE if name.startswith("tl.") else name in ("float", "range")
        if not (method or known):
            raise _Unclear
        return node

    def _masked(self, node: ast.Call, position: int) -> ast.Call:
        """The access with the row's bounds in its mask, where its address depends on the row."""
        mask = argument(node, "mask", position)
        other = argument(node, "other", 2) if position == 1 else None
        kept = [k for k in node.keywords if k.arg not in ("mask", "other")]
        if position == 1 and not any(self.row in names_read(part) for part in followed(self.kernel, node.args[0])):
            return node
        check = f"({spell(mask)}) & ({self.check})" if mask is not None else self.check
        kept.append(ast.keyword("mask", parse_expression(check)))
        if other is not None or (position == 1 and mask is None):
            kept.append(ast.keyword("other", other if other is not None else ast.Constant(0)))
        return ast.Call(node.func, node.args[:position], kept)
