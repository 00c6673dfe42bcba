"""Causal skip: key blocks that a causal mask hides from all of a program's queries are never visited.

That nothing is lost is proved, not guessed: the loop's body is evaluated on a block whose scores are all masked, over
a few abstract values, and every value that outlives the iteration must come out as it went in.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from operators.micro.kernels import Loop, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import GridRewrite
from operators.micro.rewrites.indices import (
    COLUMN_AXIS,
    ROW_AXIS,
    IndexBlock,
    Reader,
    defined_before,
    read_names,
    suite_of,
)
from operators.micro.syntax import argument, called, int_value, names_read, names_written, spell
from operators.micro.text import Edit

TOP, LOWEST, ZERO, ONE = "?", "-inf", "0", "1"  # abstract values; "=name" is the value that a name had on entry


class CausalSkip(GridRewrite):
    """Offered for each kernel whose loops over keys change nothing once the keys lie past the queries."""

    name, family, lacks = "causal-skip", "algorithm", "has no loop over keys under a causal mask"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        edits = []
        for loop in kernel.loops:
            causal, queries = _causal_pair(kernel, loop) or ("", None)
            if int_value(loop.start) != 0 or loop.function == "tl.static_range" or queries is None:
                continue
            stop, past = spell(loop.stop), f"{queries.start} + {queries.size}"  # the first key past the last query
            bounded = "tl.minimum" in stop and queries.size in stop
            known = loop.node not in kernel.body or defined_before(kernel, read_names(past), loop.node)
            if not bounded and known and _is_idle(kernel, loop, causal):
                edits.append(module.replace(loop.stop, f"tl.minimum({stop}, {past})"))
        return edits


def _causal_pair(kernel: SourceKernel, loop: Loop) -> tuple[str, IndexBlock] | None:
    """(spelling of the condition `keys <= queries`, the queries) of a loop over blocks of keys."""
    for statement in loop.node.body:
        reader = Reader(kernel, statement)
        for call in [c for c in ast.walk(statement) if isinstance(c, ast.Call) and called(c) == "tl.where"]:
            for condition in reader.conjuncts(call.args[0]):
                sides = _ordered(condition)
                if sides is None:
                    continue
                keys, queries = reader.block(sides[0]), reader.block(sides[1])
                if keys is None or queries is None or keys.offset != (loop.target,) or keys.size != spell(loop.step):
                    continue
                fixed = not read_names(queries.start) & (names_written(loop.node) | {loop.target})
                if {keys.axis, queries.axis} == {ROW_AXIS, COLUMN_AXIS} and fixed:
                    return spell(condition), queries
    return None


def _ordered(condition: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(smaller, larger) of `smaller <= larger`, however it is written; `<` hides even more, and is left alone."""
    if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return None
    left, right = condition.left, condition.comparators[0]
    if isinstance(condition.ops[0], ast.LtE):
        return left, right
    return (right, left) if isinstance(condition.ops[0], ast.GtE) else None


def _is_idle(kernel: SourceKernel, loop: Loop, causal: str) -> bool:
    """Whether an iteration whose scores are all masked leaves everything that outlives it unchanged."""
    if not all(isinstance(s, ast.Assign | ast.AugAssign) for s in loop.node.body):
        return False
    state: dict[str, str] = {}
    for statement in loop.node.body:
        evaluate = _Masked(Reader(kernel, statement), causal, state)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            whole = ast.BinOp(ast.Name(statement.target.id, ast.Load()), statement.op, statement.value)
            state[statement.target.id] = evaluate(whole)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            state[statement.targets[0].id] = evaluate(statement.value)
        else:
            return False
    return all(state[name] == f"={name}" for name in _lasting(kernel, loop) & set(state))


def _lasting(kernel: SourceKernel, loop: Loop) -> set[str]:
    """Names that the loop writes and that a later iteration, or what follows the loop, may read."""
    written: set[str] = set()
    early: set[str] = set()
    for statement in loop.node.body:
        early |= names_read(statement) - written
        written |= names_written(statement)
    holders = [loop.node, *reversed(loop.outer)]
    later = [s for node in holders for s in suite_of(kernel, node) if s.lineno > (node.end_lineno or 0)]
    redefined: set[str] = set()
    for statement in later:
        inner = set(redefined)  # what a loop defines may be read behind it, if it runs no step
        for part in [statement.iter, *statement.body] if isinstance(statement, ast.For) else [statement]:
            early |= names_read(part) - inner
            inner |= names_written(part)
        redefined = redefined if isinstance(statement, ast.For) else inner
    return early & written


class _Masked:
    """Abstract value of an expression when the causal condition is false everywhere and all inputs are finite."""

    def __init__(self, reader: Reader, causal: str, state: Mapping[str, str]) -> None:
        self.reader, self.causal, self.state = reader, causal, state

    def __call__(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.state.get(node.id, f"={node.id}")
        if isinstance(node, ast.Constant):
            return {"0": ZERO, "0.0": ZERO, "1": ONE, "1.0": ONE}.get(spell(node), TOP)
        if isinstance(node, ast.Subscript):
            return self(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return LOWEST if spell(node.operand) in ("float('inf')", "math.inf") else TOP
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node.op, self(node.left), self(node.right), node)
        return self._call(node) if isinstance(node, ast.Call) else TOP

    def _arithmetic(self, op: ast.operator, left: str, right: str, node: ast.BinOp) -> str:
        if isinstance(op, ast.Add):
            return right if left == ZERO else left if right == ZERO else TOP
        if isinstance(op, ast.Sub):
            if left == LOWEST:
                return LOWEST if right != LOWEST else TOP
            return left if right == ZERO else ZERO if left == right and left.startswith("=") else TOP
        if isinstance(op, ast.Mult):
            if ZERO in (left, right):
                return ZERO
            if LOWEST in (left, right):
                factor = node.right if left == LOWEST else node.left
                number = factor.value if isinstance(factor, ast.Constant) else 0
                return LOWEST if isinstance(number, int | float) and number > 0 else TOP
            return right if left == ONE else left if right == ONE else TOP
        if isinstance(op, ast.Div):
            return ZERO if left == ZERO else left if right == ONE else TOP
        return TOP

    def _call(self, node: ast.Call) -> str:
        name, values = called(node), [self(argument) for argument in node.args]
        if name == "float":
            return LOWEST if spell(node.args[0]) == "'-inf'" else TOP
        if name == "tl.where":
            hidden = self.causal in {spell(part) for part in self.reader.conjuncts(node.args[0])}
            return values[2] if hidden else values[1] if values[1] == values[2] else TOP
        if name in ("tl.max", "tl.sum", "tl.broadcast_to", "tl.trans"):
            return values[0] if values[0] in (LOWEST, ZERO) and (name != "tl.sum" or values[0] == ZERO) else TOP
        if name == "tl.maximum":
            return values[1] if values[0] == LOWEST else values[0] if values[1] in (LOWEST, values[0]) else TOP
        if name in ("tl.exp", "tl.exp2", "tl.math.exp", "tl.math.exp2"):
            return {LOWEST: ZERO, ZERO: ONE}.get(values[0], TOP)
        if name == "tl.dot":
            seed = argument(node, "acc", 2)
            return TOP if ZERO not in values[:2] else self(seed) if seed is not None else ZERO
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self(node.func.value)
        return TOP
