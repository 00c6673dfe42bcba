"""Which function lowers which aten operation: one function in a family's file, decorated by `lowers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx

from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.trace import expression_of

Lowering = Callable[[LoweredModule, "AtenNode"], Any]
LOWERINGS: dict[Any, Lowering] = {}
"""aten packet or overload → its lowering; the overload wins."""


class NotLowered(Exception):
    """An operation, or this use of it, has no kernel. The message completes "aten.x has no lowering: ..."."""


def lowers(*operations: Any) -> Callable[[Lowering], Lowering]:
    """Register a lowering for aten packets (`aten.flip`) or overloads (`aten.sum.dim_IntList`)."""

    def register(function: Lowering) -> Lowering:
        for operation in operations:
            LOWERINGS[operation] = function
        return function

    return register


def lowering_of(target: Any) -> Lowering | None:
    if target in LOWERINGS:
        return LOWERINGS[target]
    return LOWERINGS.get(getattr(target, "overloadpacket", None))


@dataclass
class AtenNode:
    """An aten node while it is lowered: its operands by position or name, and its fake result."""

    fx: fx.Node
    values: dict[fx.Node, Any] = field(repr=False)
    name: str = ""  # of its result in run

    @property
    def result(self) -> Any:
        return self.fx.meta["val"]

    @property
    def operation(self) -> str:
        target = self.fx.target
        return str(getattr(target, "overloadpacket", target)).replace("::", ".")

    def raw(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument as the graph has it, with schema defaults where it was left out."""
        if name and name in self.fx.kwargs:
            return self.fx.kwargs[name]
        return self.fx.args[position] if 0 <= position < len(self.fx.args) else default

    def resolve(self, argument: Any) -> Any:
        """Value of a tensor argument, sympy expression of a symbolic one, anything else as it is."""
        if isinstance(argument, fx.Node):
            value = argument.meta["val"]
            return self.values[argument] if isinstance(value, torch.Tensor) else expression_of(value)
        if isinstance(argument, list | tuple):
            return [self.resolve(item) for item in argument]
        return argument

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        return self.resolve(self.raw(position, name, default))

    def window(self, position: int, rank: int, name: str = "", default: Any = None) -> tuple[int, ...]:
        """Whole numbers, one a dimension."""
        values = self.argument(position, name, default)
        values = values if isinstance(values, list) else [values]
        if any(not isinstance(value, int) for value in values):
            raise NotLowered("windows or strides that vary with the case")
        return tuple(values * rank if len(values) == 1 else values)

    def value(self, position: int, name: str = "") -> LoweredValue:
        value = self.argument(position, name)
        if not isinstance(value, LoweredValue):
            raise NotLowered(f"argument {position} is not a tensor")
        return value

    def integer(self, position: int, name: str = "", default: int | None = None) -> int:
        number = self.argument(position, name, default)
        if isinstance(number, sympy.Expr) and not number.is_Integer:
            raise NotLowered(f"argument {position} depends on sizes")
        return int(number)
