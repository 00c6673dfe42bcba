"""Contractions: tiled matrix products over any strides, one kernel text for plain, batched and biased ones.

Of a product of which only a triangle is kept, tiles outside it are not computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from evo_kernel.tasks.lowering.frames import FrameRead, Index, tile_address, write_map
from evo_kernel.tasks.lowering.layout import LoweredValue, Operand, align, same
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule
from evo_kernel.tasks.lowering.pointwise import literal
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowering_of, lowers
from evo_kernel.tasks.lowering.trace import Expr
from evo_kernel.tasks.lowering.vector import times_vector
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten
DOT_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)
LEAST = 256
"""Rows and columns from which a product of float32 is worth a pass over its operands before it."""
_TRIANGLES = (aten.triu.default, aten.tril.default)


def matmul(
    module: LoweredModule,
    node: AtenNode,
    a: LoweredValue,
    b: LoweredValue,
    bias: LoweredValue | None = None,
    alpha: Any = 1,
    beta: Any = 1,
) -> LoweredValue:
    """out = alpha * a @ b (+ beta * bias), accumulated in float32; a and b may have one batch dimension."""
    if a.dtype not in DOT_TYPES or b.dtype not in DOT_TYPES:
        raise NotLowered(f"a product of {a.dtype} matrices")
    triangle = _triangle_of(node.fx)
    if _pays_in_parts(module, a, b) and alpha == 1 and beta == 1 and not triangle:
        return _in_parts(module, node, a, b, bias)
    if module.following:
        raise NotLowered("it is not computed with what follows")
    a, b = materialise(module, a), materialise(module, b)
    out = module.empty(node.name, node.result)
    if 1 in (a.shape[-2], b.shape[-1]) and not triangle:
        times_vector(module, out, a, b, materialise(module, bias) if bias else None, alpha, beta)
        return out
    batched = len(a.shape) == 3
    name = ("bmm" if batched else "matmul") + ("_bias" if bias else "") + (f"_{_name(triangle)}" if triangle else "")
    kernel = LoweredKernel(name, module)
    first, second, target = (align(p, v, v.shape) for p, v in (("a", a), ("b", b), ("c", out)))
    extra = align("bias", materialise(module, bias), out.shape) if bias else None
    for operand in (first, second, *([extra] if extra else []), target):
        kernel.pointer(operand.param, operand.name)
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    for param, size in (("m", m), ("n", n), ("k", k)):
        kernel.size(param, size)
    kernel.knobs |= {
        "BLOCK_M": module.block(m, most=64),
        "BLOCK_N": module.block(n, most=64),
        "BLOCK_K": module.block(k, most=32),
    }
    kernel.body += _tiles(kernel, first, second, batched, module.input_precision(a.dtype), triangle)
    kernel.body += _epilogue(kernel, extra, target, alpha, beta, triangle)
    grid = f"triton.cdiv({module.size(m)}, {{BLOCK_M}}), triton.cdiv({module.size(n)}, {{BLOCK_N}})"
    module.launch(kernel, f"({grid}, {module.size(a.shape[0])})" if batched else f"({grid})")
    if triangle:
        module.triangles[out.name] = triangle
    return out


def _in_parts(
    module: LoweredModule, node: AtenNode, a: LoweredValue, b: LoweredValue, bias: LoweredValue | None
) -> LoweredValue:
    """`product`, with what follows, where the matrices fit; else a kernel each. The result is that of the last node."""
    following, last = module.following, (node.fx, *module.following)[-1]
    multiply, beside = module.products["product"](module, node)
    products, module.products, module.following = module.products, {}, ()
    mark = len(module.lines)
    try:
        with module.under("else:"):
            own = replace(node, name=module.fresh("total")) if following else node
            values = {**node.values, node.fx: matmul(module, own, a, b, bias)}
            for one in following:
                lowering = lowering_of(one.target)
                assert lowering is not None
                name = node.name if one is last else module.fresh(one.name.strip("_"))
                values[one] = lowering(module, AtenNode(one, values, name))
    finally:
        module.products, module.following = products, following
    otherwise = module.lines[mark:]
    del module.lines[mark:]
    a, b = _without_batch(materialise(module, a), materialise(module, b))
    left, right = viewed(module, "left", a), viewed(module, "right", _turned(b))
    with module.under(f"if fits({left}, {right}):"):
        out = module.empty(node.name, last.meta["val"])
        module.line(f"{multiply}({', '.join([left, right, *(one.name for one, _ in beside), out.name])})")
    module.lines += otherwise
    return out


def _pays_in_parts(module: LoweredModule, a: LoweredValue, b: LoweredValue) -> bool:
    """Whether to multiply as float16: by sizes as `fits` in `product`."""
    sizes = a.shape[-2], b.shape[-1]
    served = "product" in module.products and a.dtype == b.dtype == torch.float32
    return served and min(map(module.largest, sizes)) >= LEAST


def _without_batch(a: LoweredValue, b: LoweredValue) -> tuple[LoweredValue, LoweredValue]:
    """A batch of products as one, where all have the same right matrix and the left ones follow each other."""
    if len(a.shape) == 2 or not (a.shape[0] == 1 or b.strides[0] == 0):
        return a, b
    if a.shape[0] != 1 and not same(a.strides[0], a.shape[1] * a.strides[1]):
        return a, b
    flat = replace(a, shape=(a.shape[0] * a.shape[1], a.shape[2]), strides=a.strides[1:])
    return flat, replace(b, shape=b.shape[1:], strides=b.strides[1:])


def _turned(matrix: LoweredValue) -> LoweredValue:
    """The last two dimensions the other way round."""

    def turn(numbers: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return *numbers[:-2], numbers[-1], numbers[-2]

    return replace(matrix, shape=turn(matrix.shape), strides=turn(matrix.strides))


def viewed(module: LoweredModule, name: str, value: LoweredValue) -> str:
    """A variable with a tensor of the value's shape and strides."""
    return module.named(name, f"{value.name}.as_strided({module.shape(value.shape)}, {module.shape(value.strides)})")


def _tiles(
    kernel: LoweredKernel, a: Operand, b: Operand, batched: bool, precision: str, triangle: fx.Node | None
) -> list[str]:
    a_at = tile_address(kernel, a, (-2, "rows[:, None]", "m"), (-1, "inner[None, :]", "k"))
    b_at = tile_address(kernel, b, (-2, "inner[:, None]", "k"), (-1, "cols[None, :]", "n"))
    return [
        f"    rows = {kernel.module.program(0)} * BLOCK_M + tl.arange(0, BLOCK_M)",
        f"    cols = {kernel.module.program(1)} * BLOCK_N + tl.arange(0, BLOCK_N)",
        *([f"    batch = {kernel.module.program(2)}"] if batched else []),
        *([f"    end = tl.where({_reaches(triangle)}, k, 0)  # nothing is kept of other tiles"] if triangle else []),
        "    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)",
        f"    for start in range(0, {'end' if triangle else 'k'}, BLOCK_K):",
        "        inner = start + tl.arange(0, BLOCK_K)",
        f"        a = tl.load({a_at}, mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)",
        f"        b = tl.load({b_at}, mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0)",
        f"        acc = tl.dot(a, b, acc{precision})",
    ]


def _epilogue(
    kernel: LoweredKernel, bias: Operand | None, out: Operand, alpha: Any, beta: Any, triangle: fx.Node | None
) -> list[str]:
    lines = ["    mask = (rows[:, None] < m) & (cols[None, :] < n)"]
    if alpha != 1:
        lines.append(f"    acc = acc * {literal(alpha, torch.float32)}")
    if bias is not None:
        axes, mask, shown = [(-2, "rows[:, None]", "m"), (-1, "cols[None, :]", "n")], "mask", ""
        if bias.strides[-2] == 0:
            axes, mask, shown = [(-1, "cols", "n")], "cols < n", "[None, :]"
        elif bias.strides[-1] == 0:
            axes, mask, shown = [(-2, "rows", "m")], "rows < m", "[:, None]"
        where = tile_address(kernel, bias, *axes)
        lines.append(f"    bias = tl.load({where}, mask={mask}, other=0.0).to(tl.float32){shown}")
        lines.append("    acc = acc + bias" if beta == 1 else f"    acc = acc + {literal(beta, torch.float32)} * bias")
    if triangle:
        lines.append(f"    acc = tl.where({_is_kept(triangle, 'rows[:, None]', 'cols[None, :]')}, acc, 0.0)")
    target = tile_address(kernel, out, (-2, "rows[:, None]", "m"), (-1, "cols[None, :]", "n"))
    lines.append(f"    tl.store({target}, acc, mask=mask)")
    return lines


@lowers(aten.mm, aten.bmm)
def mm(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return matmul(module, node, node.value(0), node.value(1))


@lowers(aten.addmm, aten.baddbmm)
def addmm(module: LoweredModule, node: AtenNode) -> LoweredValue:
    alpha, beta = node.argument(-1, "alpha", 1), node.argument(-1, "beta", 1)
    bias: LoweredValue | None = node.value(0)
    if beta == 0 or bias is None or bias.fill == 0:
        bias = None
    return matmul(module, node, node.value(1), node.value(2), bias, alpha, beta)


def _triangle_of(product: fx.Node) -> fx.Node | None:
    """The operation that keeps a triangle of a product, if nothing needs the rest."""
    user = next(iter(product.users), None)
    if user is None or len(product.users) > 1 or user.target not in _TRIANGLES or product.target not in _PRODUCTS:
        return None
    return user if isinstance(_diagonal(user), int) else None


def _name(triangle: fx.Node) -> str:
    return "triu" if triangle.target is aten.triu.default else "tril"


def _diagonal(triangle: fx.Node) -> Any:
    return triangle.kwargs.get("diagonal", triangle.args[1] if len(triangle.args) > 1 else 0)


def _is_kept(triangle: fx.Node, row: str, col: str) -> str:
    """Whether an element is; of a tile, for its corner that lies farthest in."""
    return f"{col} - {row} {'>=' if triangle.target is aten.triu.default else '<='} {_diagonal(triangle)}"


def _reaches(triangle: fx.Node) -> str:
    """Whether a tile has an element that is kept."""
    if triangle.target is aten.triu.default:
        return _is_kept(triangle, "tl.program_id(0) * BLOCK_M", "(tl.program_id(1) * BLOCK_N + BLOCK_N - 1)")
    return _is_kept(triangle, "(tl.program_id(0) * BLOCK_M + BLOCK_M - 1)", "tl.program_id(1) * BLOCK_N")


@lowers(aten.triu, aten.tril)
def triangle(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source = materialise(module, node.value(0))
    if module.triangles.get(source.name) is node.fx:
        return source
    if not isinstance(_diagonal(node.fx), int):
        raise NotLowered("a diagonal that depends on sizes")
    rank = len(source.shape)
    reads = [FrameRead(source), Index(rank - 2), Index(rank - 1)]

    def compute(names: list[str]) -> tuple[list[str], str]:
        return [], f"tl.where({_is_kept(node.fx, *names[1:])}, {names[0]}, {'False' if is_bool else '0'})"

    is_bool = source.dtype == torch.bool
    return write_map(module, _name(node.fx), reads, [], compute, module.empty(node.name, node.result), node.result)
