"""Indices of accesses: what is added to a pointer, with the names in it opened as far as a question needs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import reduce

from evo_kernel.syntax import parse_expression
from operators.micro.kernels import Access, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.blocks import suite_of
from operators.micro.rewrites.grids import own_targets
from operators.micro.syntax import (
    called,
    int_value,
    mapped,
    names_read,
    names_written,
    spell,
    statements,
    substitute,
)

ROW = ("tl.program_id(0)", "tl.program_id(axis=0)")
DEEPEST = 20  # names opened one after another; more is no index that a person wrote


def _without_casts(node: ast.expr) -> ast.expr:
    """`x.to(tl.int64)` counts as `x` when shapes of index expressions are compared."""

    def change(part: ast.AST) -> ast.expr | None:
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute) or part.func.attr != "to":
            return None
        is_cast = len(part.args) == 1 and spell(part.args[0]) in ("tl.int64", "tl.int32")
        return _without_casts(part.func.value) if is_cast else None

    return mapped(node, change)


def inlined(kernel: SourceKernel, node: ast.expr, keep: frozenset[str] = frozenset()) -> ast.expr:
    """The expression with every name assigned once replaced by its value, except the names to keep."""
    for _ in range(DEEPEST):
        values = {n: kernel.value_of(n) for n in names_read(node) - keep}
        known = {n: v for n, v in values.items() if v is not None}
        if not known:
            return node
        node = substitute(node, known)
    return node


def named(kernel: SourceKernel, wanted: Sequence[str]) -> list[str]:
    """Names assigned once whose value, written out, is one of the wanted expressions."""
    spelled = {spell(parse_expression(text)) for text in wanted}
    names = [n for n in kernel.definitions if kernel.value_of(n) is not None]
    return [n for n in names if spell(_without_casts(inlined(kernel, ast.Name(n, ast.Load())))) in spelled]


def terms_of(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return terms_of(node.left) + terms_of(node.right)
    return [node]


def index_of(kernel: SourceKernel, access: Access) -> str | None:
    """What is added to the pointer parameter to reach the address, as text valid at the access; None if unclear."""
    if access.base is None:
        return None
    pointer = access.pointer
    while True:
        terms, node = [], pointer
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            terms.append(node.right)
            node = node.left
        if not isinstance(node, ast.Name):
            return None
        if node.id == access.base:
            break
        value = kernel.value_of(node.id)
        if value is None or not _steady(kernel, value):
            return None
        pointer = substitute(pointer, {node.id: value})
    if not terms:
        return "0"
    index = terms.pop()
    while terms:
        index = ast.BinOp(index, ast.Add(), terms.pop())
    return spell(index)


def _steady(kernel: SourceKernel, node: ast.expr) -> bool:
    """Whether every name in the expression is a parameter or assigned once: its value is the same later on."""
    return all(len(kernel.definitions.get(n, ())) <= 1 for n in names_read(node))


def whole_index_of(kernel: SourceKernel, access: Access, keep: frozenset[str]) -> str | None:
    """The index with every name but those to keep written out, as one flat sum. Only for kernels that assign every
    name once: fused kernels reach several tensors by `index = row * stride + start + cols`."""
    index = index_of(kernel, access)
    if index is None:
        return None
    first, *rest = terms_of(inlined(kernel, parse_expression(index), keep))
    for term in rest:
        first = ast.BinOp(first, ast.Add(), term)
    return spell(first)


def opened_index(kernel: SourceKernel, access: Access, index: str) -> ast.expr:
    """An index that is only a name as what the name was assigned, where that still means the same at the access."""
    node = parse_expression(index)
    suite = suite_of(kernel, access.statement)
    for _ in range(DEEPEST):
        value = kernel.value_of(node.id) if isinstance(node, ast.Name) else None
        if value is None or not isinstance(node, ast.Name):
            break
        place = kernel.definitions[node.id][0]
        between = [s for s in suite if place.lineno < s.lineno < access.statement.lineno]
        here = any(place is s for s in suite) and place.lineno < access.statement.lineno
        if not here or names_written(*between) & names_read(value):
            break
        node = value
    return node


def rejoined(index: str, bound: Mapping[str, str]) -> str:
    """`i // s * t + i % s` as `i`, where s and t are bound to the same value; else the index as it is."""
    match parse_expression(index):
        case ast.BinOp(
            left=ast.BinOp(
                left=ast.BinOp(left=whole, op=ast.FloorDiv(), right=ast.Name(id=size)),
                op=ast.Mult(),
                right=ast.Name(id=step),
            ),
            op=ast.Add(),
            right=ast.BinOp(left=again, op=ast.Mod(), right=ast.Name(id=third)),
        ) if spell(whole) == spell(again) and size == third:
            same = size == step or (size in bound and bound[size] == bound.get(step))
            return spell(whole) if same else index
    return index


def host_spelling(module: KernelModule, node: ast.expr) -> str:
    """A launch argument in a spelling that is equal for equal strides: buffers by how they were allocated, and
    `stride` of `torch.empty` by its sizes."""
    buffers, arguments = module.buffers, {a.arg for a in module.run.args.args}
    written = [n for s in statements(module.run.body) for n in own_targets(s)]
    once = ({n for n in written if written.count(n) == 1} | arguments) - (arguments & set(written))
    known = once | {"torch", "triton"} | (module.names - set(written))

    def change(part: ast.AST) -> ast.expr | None:
        """`buffer.stride(0)` as `torch.empty_like(x).stride(0)`, where nothing in it is assigned twice."""
        if not isinstance(part, ast.Call):
            return None
        owner = part.func.value if isinstance(part.func, ast.Attribute) else None
        if not isinstance(owner, ast.Name) or owner.id not in buffers or owner.id not in once:
            return part
        call = buffers[owner.id].call
        if not spell(part.func).endswith(".stride") or not names_read(call) <= known:
            return part
        sizes, axis = _sizes(call), int_value(part.args[0]) if len(part.args) == 1 else None
        if sizes is not None and axis is not None and axis < len(sizes):
            rest = sizes[axis + 1 :] or [ast.Constant(1)]
            return reduce(lambda left, right: ast.BinOp(left, ast.Mult(), right), rest)
        return ast.Call(ast.Attribute(call, "stride", ast.Load()), part.args, part.keywords)

    return spell(mapped(node, change))


def _sizes(call: ast.Call) -> list[ast.expr] | None:
    """The sizes of `torch.empty((a, b), ...)`, which is contiguous."""
    plain = called(call) in ("torch.empty", "torch.zeros") and len(call.args) == 1
    plain = plain and not any(k.arg in ("memory_format", "layout") for k in call.keywords)
    return call.args[0].elts if plain and isinstance(call.args[0], ast.Tuple | ast.List) else None
