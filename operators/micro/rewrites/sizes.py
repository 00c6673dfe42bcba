"""Sizes that indices are divided by become constants of the compiler: a form of `drop-masks`.

A division by a run-time number costs tens of instructions an element, and hides how neighbouring elements lie. By a
constant it is a multiplication, and addresses keep what the constant is divisible by. Each size is compiled for itself.
"""

from __future__ import annotations

import ast

from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.indices import Reader
from operators.micro.syntax import statements
from operators.micro.text import Edit


def constant_sizes(module: KernelModule, kernel: SourceKernel) -> list[Edit]:
    """Parameters of a kernel declared as constants; empty where none is divided by."""
    sizes = _divisors(kernel) - _with_methods(kernel)
    nodes = [node for node in ast.walk(kernel.node.args) if isinstance(node, ast.arg) and node.arg in sizes]
    return [module.replace(node, f"{node.arg}: tl.constexpr") for node in nodes if node.annotation is None]


def _divisors(kernel: SourceKernel) -> set[str]:
    """Scalar parameters by which a block of indices is divided."""
    scalars = {p.name for p in kernel.parameters if p.kind == "scalar"} - set(kernel.definitions)
    return {
        part.right.id
        for statement in statements(kernel.body)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr)
        for part in ast.walk(statement)
        if isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.FloorDiv | ast.Mod)
        and isinstance(part.right, ast.Name)
        and part.right.id in scalars
        and not Reader(kernel, statement).is_scalar(part.left)
    }


def _with_methods(kernel: SourceKernel) -> set[str]:
    """Names of which a method is called (`n.to(tl.int64)`): constants have none."""
    parts = [part for part in ast.walk(kernel.node) if isinstance(part, ast.Attribute)]
    return {part.value.id for part in parts if isinstance(part.value, ast.Name)}
