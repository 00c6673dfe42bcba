"""The accumulator's type: a whole block of partial sums or maxima instead of one number a row.

`total += tl.sum(x, axis=0)` reduces across threads in every iteration; `total_block += x`, with one `tl.sum` after the
loop, does it once. Still fp32, still a fixed order. (Writing `acc += tl.dot(a, b)` as `acc = tl.dot(a, b, acc)` is no
rewrite: the compiler makes the same machine code of both.)
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evo_kernel.types import TaskCard
from operators.micro.edits import Edit
from operators.micro.kernels import Loop, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.blocks import Reader, Shape, shape_of, suite_of
from operators.micro.rewrites.grids import GridRewrite, fresh_names
from operators.micro.syntax import argument, called, names_read, names_written, spell

LOWEST = ("float('-inf')", "-float('inf')")
INTEGERS = ("int", "uint", "bool")


@dataclass(frozen=True)
class _Reduction:
    """`name += tl.sum(value, axis)`, or `name = tl.maximum(name, tl.max(value, axis))`, in a loop."""

    name: str
    loop: Loop
    statement: ast.stmt
    init: ast.Assign
    reduce: ast.Call
    shape: Shape

    @property
    def is_sum(self) -> bool:
        return called(self.reduce) == "tl.sum"


class AccumulateType(GridRewrite):
    """Offered where a loop reduces every block to update an fp32 accumulator that nothing else in it touches."""

    name, family = "accumulate-type", "algorithm"
    lacks = "has no loop that reduces every block into an fp32 accumulator"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[_Reduction]:
        found = [_reduction(kernel, loop, s) for loop in kernel.loops for s in loop.node.body]
        return [reduction for reduction in found if reduction is not None]

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: list[_Reduction]) -> bool:
        firsts = [dtype for case in task.cases for dtype, _, _ in case.inputs[:1]]
        return not any(dtype.startswith(INTEGERS) for dtype in firsts)  # sums of integers are no fp32 sums

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: list[_Reduction]) -> str:
        blocks = fresh_names(kernel, [f"{reduction.name}_block" for reduction in found])
        return module.edited(*[_widened(module, one, block) for one, block in zip(found, blocks, strict=True)])


def _reduction(kernel: SourceKernel, loop: Loop, statement: ast.stmt) -> _Reduction | None:
    parts = _parts(statement)
    if parts is None:
        return None
    name, reduce = parts
    places = kernel.definitions.get(name, ())
    init = places[0] if len(places) == 2 and places[1] is statement else None
    suite = suite_of(kernel, loop.node)
    if not isinstance(init, ast.Assign) or init not in suite or init.lineno > loop.node.lineno:
        return None
    others = [part for part in loop.node.body if part is not statement]
    if name in names_read(*others, loop.node.iter, *reduce.args) or not _starts_neutral(init.value, called(reduce)):
        return None
    between = [s for s in suite if init.lineno < s.lineno < loop.node.lineno]
    shape = shape_of(Reader(kernel, statement), reduce.args[0])
    known = set(kernel.constexprs) | {str(n) for n in range(1, 1 << 14)}
    if name in names_read(*between) | names_written(*between) or not shape or not set(shape) <= known:
        return None
    return _Reduction(name, loop, statement, init, reduce, shape)


def _parts(statement: ast.stmt) -> tuple[str, ast.Call] | None:
    """(accumulator, the reduction) of a statement that folds a reduced block into an accumulator."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target, folded, wanted = statement.target, statement.value, "tl.sum"
    elif isinstance(statement, ast.Assign) and called(statement.value) == "tl.maximum":
        assert isinstance(statement.value, ast.Call)
        target, wanted = statement.targets[0], "tl.max"
        folded = next((part for part in statement.value.args if called(part) == wanted), None)
        rest = [part for part in statement.value.args if part is not folded]
        if len(rest) != 1 or spell(rest[0]) != spell(target):
            return None
    else:
        return None
    if not isinstance(target, ast.Name) or not isinstance(folded, ast.Call) or called(folded) != wanted:
        return None
    axis_only = len(folded.args) + len(folded.keywords) == 2 and argument(folded, "axis", 1) is not None
    return (target.id, folded) if axis_only else None


def _starts_neutral(value: ast.expr, reduce: str) -> bool:
    """Whether the accumulator starts as fp32 zero (of sums) or minus infinity (of maxima)."""
    neutral = ("0.0",) if reduce == "tl.sum" else LOWEST
    if not isinstance(value, ast.Call) or called(value) == "float":
        return spell(value) in neutral
    if called(value) == "tl.zeros":
        dtype = argument(value, "dtype", 1)
        return reduce == "tl.sum" and dtype is not None and spell(dtype) == "tl.float32"
    if called(value) == "tl.full":
        fill, dtype = argument(value, "value", 1), argument(value, "dtype", 2)
        return fill is not None and dtype is not None and spell(fill) in neutral and spell(dtype) == "tl.float32"
    return False


def _widened(module: KernelModule, reduction: _Reduction, block: str) -> list[Edit]:
    shape, value = ", ".join(reduction.shape), module.source_of(reduction.reduce.args[0])
    if reduction.is_sum:
        start, step = f"tl.zeros([{shape}], tl.float32)", f"{block} += {value}"
    else:
        start = f'tl.full([{shape}], float("-inf"), tl.float32)'
        step = f"{block} = tl.maximum({block}, {value})"
    whole = ast.Call(reduction.reduce.func, [ast.Name(block), *reduction.reduce.args[1:]], reduction.reduce.keywords)
    return [
        module.replace(reduction.init, f"{block} = {start}"),
        module.replace(reduction.statement, step),
        module.insert_after(reduction.loop.node, f"{reduction.name} = {spell(whole)}"),
    ]
