"""Rounds of the loops inside library functions, which depend on the numbers that they get.

No loop of the IR stands for them. A warp takes as many rounds as its slowest element. Instructions of a round are those
of libdevice in code for sm_90.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from evo_kernel.fitness.ir.engine import Machine
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.plan.launch_plan import Aten
from evo_kernel.fitness.plan.torch_operations import arguments_of

_LARGE_ANGLE, _LARGE_DOUBLE = 105615.0, 2.0**31
"""Above them an angle is reduced by multiplying it with all words of 2 / pi (Payne and Hanek)."""
_WORDS = 6
_WARP = 32


def _exponents(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By how many bits a quotient is longer than its divisor; below zero where nothing is divided."""
    divides = x.isfinite() & y.isfinite() & (y != 0) & (x.abs() >= y.abs())
    return torch.where(divides, torch.frexp(x).exponent - torch.frexp(y).exponent, -1)


def _long_division(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of float32: 23 bits a round; quotients of at most 23 bits take none."""
    bits = _exponents(x, y)
    return torch.where(bits >= 23, torch.div(bits + 22, 23, rounding_mode="floor"), 0)


def _bitwise_division(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _exponents(x, y) + 1


def _squarings(_x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.frexp(n.double().abs()).exponent


def _large_angle(x: torch.Tensor) -> torch.Tensor:
    return _WORDS * (x.isfinite() & (x.abs() > _LARGE_ANGLE)).int()


def _large_double(x: torch.Tensor) -> torch.Tensor:
    return _WORDS * (x.isfinite() & (x.abs() > _LARGE_DOUBLE)).int()


_Loop = tuple[Callable[..., torch.Tensor], float]
_OF_ANGLES: tuple[_Loop, _Loop] = ((_large_angle, 24.0), (_large_double, 50.0))
_OF_REMAINDERS: dict[str, tuple[_Loop, _Loop]] = {
    "fmod": ((_long_division, 13.0), (_bitwise_division, 8.0)),
    "remainder": ((_long_division, 17.0), (_bitwise_division, 8.0)),
}
_LOOPS: dict[str, tuple[_Loop, _Loop]] = {
    **_OF_REMAINDERS,
    "powi": ((_squarings, 6.0), (_squarings, 8.0)),
    **dict.fromkeys(("sin", "cos", "tan", "j0", "j1", "y0", "y1"), _OF_ANGLES),
}
"""Rounds and instructions of each, for float32 and for float64."""


def observe(machine: Machine, name: str, programs: torch.Tensor, operands: Sequence[Lanes]) -> None:
    """Tell the observer what the loops of a function take: `__nv_fmodf`, `math.sin`."""
    if machine.observer is None or not operands or not operands[0].type.is_float:
        return
    double = operands[0].type.element == "f64"
    base = name.removeprefix("math.").removeprefix("__nv_")
    loops = _LOOPS.get(base if double or name.startswith("math.") else base.removesuffix("f"))
    if loops is None or name.startswith("__nv_fast_"):
        return
    rounds, instructions = loops[double]
    taken = rounds(*(value.data for value in operands))
    if not bool((taken > 0).any()):
        return
    shape = max((value.type.shape or () for value in operands), key=len)
    elements = int(torch.Size(shape).numel())
    whole = taken.expand(taken.shape[0], *shape).reshape(taken.shape[0], -1, min(_WARP, elements)).clamp(min=0)
    each = whole.amax(2).double().mean(1)
    machine.observer.library(programs, elements, each * instructions)


_IN_TORCH = {name: name for name in ("fmod", "remainder", "sin", "cos", "tan")} | {"floor_divide": "fmod"}


def of_torch(node: Aten, tensors: Sequence[torch.Tensor]) -> float:
    """Instructions that threads execute in the loops of a torch operation on these tensors, in place of its views."""
    args, named = arguments_of(node, tensors, "cpu")
    name = node.op.split(".")[1].removeprefix("_foreach_").rstrip("_")
    name = "floor_divide" if (name, named.get("rounding_mode")) in (("div", "floor"), ("divide", "floor")) else name
    if (loops := _LOOPS.get(_IN_TORCH.get(name, ""))) is None:
        return 0.0
    lists = [value if isinstance(value, list) else [value] for value in args]
    count = max(map(len, lists))
    rows = zip(*(values * (count if len(values) == 1 else 1) for values in lists), strict=True)
    return sum(_of_one(loops, row) for row in rows)


def _of_one(loops: tuple[_Loop, _Loop], values: Sequence[torch.Tensor | float]) -> float:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    double = any(value.dtype is torch.float64 for value in tensors)
    if not any(value.is_floating_point() for value in tensors):
        return 0.0
    rounds, instructions = loops[double]
    wide = [torch.as_tensor(value).to(torch.float64 if double else torch.float32) for value in values]
    taken = rounds(*torch.broadcast_tensors(*wide)).clamp(min=0).reshape(-1)
    whole = torch.nn.functional.pad(taken, (0, -taken.numel() % _WARP)).reshape(-1, _WARP)
    return float(whole.amax(1).double().sum()) * _WARP * instructions
