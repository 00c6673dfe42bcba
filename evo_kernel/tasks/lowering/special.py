"""Special functions by series: digamma, polygamma, Chebyshev polynomials. Computed in the dtype of the result."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.pointwise import result_job, write
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers

aten = torch.ops.aten

FAR = 10
"""Where the asymptotic series begin: six terms then leave an error below 1e-13."""
BERNOULLI = tuple(Fraction(*pair) for pair in ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730)))
"""B_2, B_4, ..."""
ORDERS = 8
"""Orders of polygamma, and (with 64) degrees of polynomials, that are spelled out."""


def _series(factors: list[float], inverse: str) -> str:
    """factors[0] + inverse * (factors[1] + inverse * (...)), by Horner's rule."""
    text = repr(factors[-1])
    for factor in reversed(factors[:-1]):
        text = f"{factor!r} + {inverse} * ({text})"
    return text


@lowers(aten.digamma)
def digamma(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """ψ(x) = ψ(x + 1) - 1/x up to x = 10, then log x - 1/2x - Σ B_2j / (2j x^2j); below zero by reflection."""
    series = _series([float(value / (2 * j)) for j, value in enumerate(BERNOULLI, 1)], "inverse")
    lines = (
        "far = tl.where({0} < 0.0, 1.0 - {0}, {0})",
        "total = far * 0.0",
        f"for k in range(0, {FAR}):",
        f"    total = total - tl.where(far < {FAR}.0, 1.0 / far, 0.0)",
        f"    far = tl.where(far < {FAR}.0, far + 1.0, far)",
        "inverse = 1.0 / (far * far)",
        f"total = total + tl.log(far) - 0.5 / far - inverse * ({series})",
        "angle = ({0} - tl.where({0} < 0.0, tl.ceil({0}), tl.floor({0}))) * " + repr(math.pi),
        f"mirrored = total - {math.pi!r} * tl.cos(angle) / tl.sin(angle)",
        "mirrored = tl.where(angle == 0.0, float('nan'), mirrored)",
        "tl.where({0} < 0.0, mirrored, total)",
    )
    return write(module, node, result_job(node, "digamma", (node.argument(0),), lines))


@lowers(aten.polygamma)
def polygamma(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """(-1)^(n+1) n! ζ(n + 1, x): terms up to x = 10 one by one, then the series of Euler and Maclaurin."""
    order = node.integer(0)
    if order == 0:
        raise NotLowered("order 0; write torch.digamma")
    if order > ORDERS:
        raise NotLowered(f"orders above {ORDERS}")
    s, sign = order + 1, math.factorial(order) * (1 if order % 2 else -1)
    factors, rising = [], s
    for j, value in enumerate(BERNOULLI, 1):
        factors.append(float(value / math.factorial(2 * j) * rising))
        rising *= (s + 2 * j - 1) * (s + 2 * j)
    lines = (
        "far = {0}",
        "total = far * 0.0",
        f"terms = tl.max(tl.where(mask, {FAR + 1}.0 - far, 0.0), axis=0)",
        "terms = terms.to(tl.int32)",  # below zero they are more
        "for k in range(0, terms):",
        "    inverse = 1.0 / far",
        f"    total = total + tl.where(far < {FAR}.0, {' * '.join(['inverse'] * s)}, 0.0)",
        f"    far = tl.where(far < {FAR}.0, far + 1.0, far)",
        "inverse = 1.0 / far",
        f"power = {' * '.join(['inverse'] * order)}",
        "square = inverse * inverse",
        f"rest = {1 / order!r} + 0.5 * inverse + square * ({_series(factors, 'square')})",
        f"{float(sign)!r} * (total + power * rest)",
    )
    return write(module, node, result_job(node, f"polygamma_{order}", (node.argument(1),), lines))


@lowers(aten.special_chebyshev_polynomial_t.n_scalar)
def chebyshev(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """T_n(x) by T_n = 2 x T_(n-1) - T_(n-2)."""
    degree = node.argument(1)
    if not isinstance(degree, int) or degree > 8 * ORDERS:
        raise NotLowered(f"degrees above {8 * ORDERS}, or which are no whole numbers")
    lines = (
        "before = {0} * 0.0 + 1.0",
        "now = {0}",
        f"for k in range(1, {degree}):",
        "    following = 2.0 * {0} * now - before",
        "    before = now",
        "    now = following",
        "now",
    )
    short = {0: ("{0} * 0.0 + 1.0",), 1: ("{0}",)}
    lines = ("{0} * 0.0",) if degree < 0 else short.get(degree, lines)
    return write(module, node, result_job(node, f"chebyshev_t_{max(degree, 0)}", (node.argument(0),), lines))
