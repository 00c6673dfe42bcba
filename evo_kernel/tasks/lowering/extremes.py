"""Maxima and minima as PyTorch takes them: NaN where an operand is NaN. Triton's own drop it, at the same price."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Extreme:
    word: str  # "max" or "min"
    sign: str  # between a and b where a is the result
    combiner: str  # name of the jitted function that reductions combine by

    def of(self, a: str, b: str, dtype: torch.dtype) -> str:
        """Of two names or numbers that are computed in `dtype`. Triton 3.6 compiles no `propagate_nan` of float64."""
        if dtype == torch.float64:
            return f"tl.where(({a} {self.sign} {b}) | ({a} != {a}), {a}, {b})"
        keeps = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_floating_point else ""
        return f"tl.{self.word}imum({a}, {b}{keeps})"

    def across(self, total: str, axis: int, dtype: torch.dtype) -> str:
        """Along an axis of a block. The module needs `functions(dtype)`."""
        if not dtype.is_floating_point:
            return f"tl.{self.word}({total}, axis={axis})"
        return f"tl.reduce({total}, {axis}, {self._combiner(dtype)})"

    def functions(self, dtype: torch.dtype) -> dict[str, str]:
        """Name of the function that `across` combines by → its text."""
        if not dtype.is_floating_point:
            return {}
        name = self._combiner(dtype)
        return {name: f"@triton.jit\ndef {name}(a, b):\n    return {self.of('a', 'b', dtype)}\n"}

    def _combiner(self, dtype: torch.dtype) -> str:
        return self.combiner + ("_f64" if dtype == torch.float64 else "")


LARGER = Extreme("max", ">", "larger_or_nan")
SMALLER = Extreme("min", "<", "smaller_or_nan")
