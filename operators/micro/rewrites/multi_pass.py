"""`multi-pass-row`: a row that is held in registers as a whole is walked in blocks instead, once a reduction."""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_expression, parse_module
from evo_kernel.types import TaskCard
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.rows import calls_apart, is_straight, loads_apart, only_shapes
from operators.micro.syntax import (
    argument,
    assignment,
    called,
    fresh_name,
    mapped,
    names_read,
    names_written,
    spell,
    substitute,
)

STARTS = {"tl.sum": "0.0", "tl.max": "-float('inf')", "tl.min": "float('inf')"}
DEFAULT_BLOCK = 1024


class MultiPassRow(Rewrite):
    name, family, lacks = "multi-pass-row", "algorithm", "does not hold a whole row in one block"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> tuple[str, str] | None:
        return _row(module, kernel)

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: tuple[str, str]) -> bool:
        # A constexpr that says that the block divides the row (see drop_masks.py) would lie of a smaller block.
        return not any(parameter.name.startswith("EVEN_") for parameter in kernel.parameters)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: tuple[str, str]) -> str:
        block, text = found
        knob = module.fresh(f"{kernel.name.removesuffix('_kernel').upper()}_BLOCK")
        edits = [module.replace_range(kernel.body[0], kernel.body[-1], text), module.set_constant(knob, DEFAULT_BLOCK)]
        edits += [module.replace(launch.arguments[block], knob) for launch in module.launches_of(kernel.name)]
        return module.edited(edits)


def _row(module: KernelModule, kernel: SourceKernel) -> tuple[str, str] | None:
    """The block's parameter and the new body, when the kernel's launches bind a block over the whole row."""
    launches = module.launches_of(kernel.name)
    if not launches or kernel.loops or not is_straight(kernel.body) or kernel.calls("tl.dot"):
        return None
    for block in kernel.constexprs:
        bound = [launch.arguments.get(block) for launch in launches]
        if any(b is None or called(b) != "triton.next_power_of_2" for b in bound) or not only_shapes(kernel, block):
            continue
        for size in (p.name for p in kernel.parameters if p.kind == "scalar"):
            fits = all(
                size in launch.arguments and spell(launch.arguments[size]) == spell(launch.arguments[block].args[0])  # type: ignore[attr-defined]
                for launch in launches
            )
            text = _Stages(kernel, size, block).text() if fits else None
            if text is not None:
                return block, text
    return None


class _Stages:
    """Puts each statement into the pass whose reductions it needs."""

    def __init__(self, kernel: SourceKernel, size: str, block: str) -> None:
        self.kernel, self.size, self.block = kernel, size, block
        self.start = kernel.fresh("start")
        self.body = calls_apart(
            kernel, loads_apart(kernel, kernel.body), STARTS, "reduced", lambda value: called(value) in STARTS
        )

    def text(self) -> str | None:
        """The new body; None when a statement fits in no pass."""
        body = _single_names(self.body, self.kernel)
        if body is None or f"tl.arange(0, {self.block})" not in " ".join(spell(s) for s in body):
            return None
        blocks: dict[str, ast.stmt] = {}  # names that are blocks of the row, and how they are computed
        lines: list[str] = []
        reductions = 0
        for statement in body:
            wide = self._is_wide(statement, blocks)
            if isinstance(statement, ast.Assign) and not wide:
                lines.append(spell(statement))
            elif isinstance(statement, ast.Assign) and called(statement.value) in STARTS:
                made = self._reduction(statement, blocks)
                if made is None:
                    return None
                reductions += 1
                lines += made
            elif isinstance(statement, ast.Assign) and not any(f"{f}(" in spell(statement.value) for f in STARTS):
                blocks[next(iter(names_written(statement)))] = statement
            elif isinstance(statement, ast.Expr) and called(statement.value) == "tl.store":
                lines += self._loop([statement], blocks) if wide else [spell(statement)]
            else:
                return None
        return "\n".join(lines) if reductions or any(line.startswith("for") for line in lines) else None

    def _is_wide(self, statement: ast.stmt, blocks: dict[str, ast.stmt]) -> bool:
        makes = "tl.arange(" in spell(statement) or "tl.zeros(" in spell(statement) or "tl.full(" in spell(statement)
        return makes or bool(names_read(statement) & set(blocks))

    def _reduction(self, statement: ast.Assign, blocks: dict[str, ast.stmt]) -> list[str] | None:
        call, name = statement.value, spell(statement.targets[0])
        assert isinstance(call, ast.Call)
        axis = argument(call, "axis", 1)
        if axis is None or spell(axis) != "0" or len(call.args) + len(call.keywords) != 2:
            return None
        function, inner = called(call), f"{called(call)}({spell(call.args[0])}.to(tl.float32), axis=0)"
        step = f"{name} + {inner}" if function == "tl.sum" else f"tl.{function[3:]}imum({name}, {inner})"
        return [f"{name} = {STARTS[function]}", *self._loop(parse_module(f"{name} = {step}").body, blocks)]

    def _loop(self, last: list[ast.stmt], blocks: dict[str, ast.stmt]) -> list[str]:
        """A pass that computes the blocks which the last statement needs, and then it."""
        needed, todo = set[str](), list(last)
        while todo:
            for name in (names_read(todo.pop()) & set(blocks)) - needed:
                needed.add(name)
                todo.append(blocks[name])
        body = [s for n, s in blocks.items() if n in needed] + last
        arange = f"tl.arange(0, {self.block})"
        columns = parse_expression(f"{self.start} + {arange}")

        def change(part: ast.AST) -> ast.expr | None:
            return columns if isinstance(part, ast.Call) and spell(part) == arange else None

        moved = [spell(mapped(statement, change)) for statement in body]
        return [f"for {self.start} in range(0, {self.size}, {self.block}):", *["    " + line for line in moved]]


def _single_names(body: list[ast.stmt], kernel: SourceKernel) -> list[ast.stmt] | None:
    """Straight code in which each name is assigned once (`x += y` as `x_2 = x + y`, and so on)."""
    taken, current, done = set(kernel.names), dict[str, str](), list[ast.stmt]()
    for original in body:
        statement = original
        if isinstance(original, ast.AugAssign):
            value: ast.expr = ast.BinOp(ast.Name(spell(original.target), ast.Load()), original.op, original.value)
            statement = assignment(spell(original.target), value)
        names = {old: ast.Name(new, ast.Load()) for old, new in current.items()}
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if not isinstance(target, ast.Name):
                return None
            made, name = substitute(statement.value, names), target.id
            if name in current:
                name = fresh_name(name, taken)
            taken.add(name)
            current[target.id] = name
            done.append(assignment(name, made))
        else:
            done.append(substitute(statement, names))
    return done
