"""Sizes become constants of the compiler: forms of `drop-masks`.

A division by a run-time number costs tens of instructions an element, and hides how neighbouring elements lie. By a
constant it is a multiplication, and addresses keep what the constant is divisible by. Of other sizes and strides the
compiler learns which bounds hold, how often loops run and how neighbours lie. Each size is compiled for itself.
"""

from __future__ import annotations

import ast

from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import followed
from operators.micro.rewrites.indices import Reader
from operators.micro.syntax import names_read, spell, statements
from operators.micro.text import Edit


def constant_sizes(module: KernelModule, kernel: SourceKernel, every: bool = False) -> list[Edit]:
    """Parameters of a kernel declared as constants: those that indices are divided by, or where there are none, `every`
    size and stride; empty where there are none of these."""
    not_these = _with_methods(kernel) | _unspecialized(kernel)
    divisors = _divisors(kernel) - not_these
    sizes = divisors if not every else set() if divisors else _sizes(kernel) - not_these
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


def _sizes(kernel: SourceKernel) -> set[str]:
    """Scalar parameters that addresses, bounds of loops and masks are made of."""
    scalars = {p.name for p in kernel.parameters if p.kind == "scalar"} - set(kernel.definitions)
    made = [a.pointer for a in kernel.accesses] + [
        n for loop in kernel.loops for n in (loop.start, loop.stop, loop.step)
    ]
    made += [
        part
        for access in kernel.accesses
        if access.mask is not None
        for node in followed(kernel, access.mask)
        for part in ast.walk(node)
        if isinstance(part, ast.Compare) and any("tl.arange" in spell(origin) for origin in followed(kernel, part.left))
    ]
    used = {name for node in made for origin in followed(kernel, node) for name in names_read(origin)}
    copied = {
        s.value.id for s in statements(kernel.body) if isinstance(s, ast.Assign) and isinstance(s.value, ast.Name)
    }
    return scalars & used - copied


def _with_methods(kernel: SourceKernel) -> set[str]:
    """Names of which a method is called (`n.to(tl.int64)`): constants have none."""
    parts = [part for part in ast.walk(kernel.node) if isinstance(part, ast.Attribute)]
    return {part.value.id for part in parts if isinstance(part.value, ast.Name)}


_KEPT = "do_not_specialize"


def _unspecialized(kernel: SourceKernel) -> set[str]:
    """Parameters that `do_not_specialize` names: the compiler refuses constants there."""
    given = [
        k.value
        for d in kernel.node.decorator_list
        if isinstance(d, ast.Call)
        for k in d.keywords
        if _KEPT in str(k.arg)
    ]
    parts = [part for value in given for part in ast.walk(value)]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
