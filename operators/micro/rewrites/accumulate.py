"""Fused accumulation: the tensor cores add into the accumulator, instead of a product and then a sum."""

from __future__ import annotations

import ast

from evo_kernel.types import Strategy, TaskCard
from operators.micro.module import Kernel, KernelModule, argument, called, names_read, spell, statements
from operators.micro.rewrites.base import RewriteFailed, kernel_of, kernel_region


class AccumulateType:
    """`acc += tl.dot(a, b)` becomes `acc = tl.dot(a, b, acc)`: in fp32 as before, no other accumulator is touched."""

    name = "accumulate-type"

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        return [
            Strategy(self.name, "algorithm", kernel_region(kernel.name))
            for kernel in module.kernels.values()
            if _sums(kernel)
        ]

    def apply(self, module: KernelModule, strategy: Strategy) -> str:
        kernel = kernel_of(module, strategy)
        sums = _sums(kernel)
        if not sums:
            raise RewriteFailed(f"{kernel.name} adds no tl.dot to an fp32 accumulator")
        return module.edited(module.replace(statement, text) for statement, text in sums)


def _sums(kernel: Kernel) -> list[tuple[ast.stmt, str]]:
    """Statements that add a product to an accumulator, and how they read when fused."""
    found = []
    for statement in statements(kernel.body):
        parts = _parts(statement)
        if parts is None:
            continue
        name, seed, dot = parts
        if argument(dot, "acc", 2) is None and name not in names_read(dot) and _is_fp32(kernel, name):
            changed = ast.Call(dot.func, [*dot.args[:2], seed], dot.keywords)
            found.append((statement, f"{name} = {spell(changed)}"))
    return found


def _parts(statement: ast.stmt) -> tuple[str, ast.expr, ast.Call] | None:
    """(accumulator, what it was before, the product) of `acc += dot` or `acc = before + dot`."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target, left, right = statement.target, None, statement.value
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        if not isinstance(statement.value.op, ast.Add):
            return None
        target, left, right = statement.targets[0], statement.value.left, statement.value.right
    else:
        return None
    if not isinstance(target, ast.Name):
        return None
    before = left if left is not None else ast.Name(target.id, ast.Load())
    if not isinstance(right, ast.Call) or called(right) != "tl.dot" or target.id not in names_read(before):
        return None
    return target.id, before, right


def _is_fp32(kernel: Kernel, name: str) -> bool:
    """Whether the accumulator starts as fp32 zeros (then every later value is fp32, as loops demand)."""
    for place in kernel.definitions.get(name, ()):
        value = place.value if isinstance(place, ast.Assign) else None
        if isinstance(value, ast.Call) and called(value) == "tl.zeros":
            dtype = argument(value, "dtype", 1)
            return dtype is not None and spell(dtype) == "tl.float32"
    return False
