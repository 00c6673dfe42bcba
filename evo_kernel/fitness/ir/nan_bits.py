"""Signs of NaN where a program reads bits: a GPU computes NaN without one, a CPU with one."""

from __future__ import annotations

from functools import lru_cache

import torch

from evo_kernel.fitness.ir.engine import Machine
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.module import LOADS, IRModule

_MOVES = frozenset({
    "arith.bitcast", "arith.constant", "arith.negf", "arith.select", "math.absf", "tt.bitcast", "tt.broadcast",
    "tt.cat", "tt.expand_dims", "tt.gather", "tt.join", "tt.reshape", "tt.splat", "tt.split", "tt.trans", "tt.unsplat",
    "ttg.convert_layout",
})  # fmt: skip
"""The compiler takes a negation and an absolute value as changes of one bit."""
_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
"""Arithmetic of float64 keeps the bits of NaN."""


@lru_cache(maxsize=256)
def _computed(module: IRModule) -> frozenset[str]:
    """Names of floats that are neither loaded, constant or made of bits, nor such values moved."""
    blocks = [block for function in module.functions.values() for block in function.body.blocks]
    computed = {argument.name for block in blocks if block not in module.entry.body.blocks[:1]
                for argument in block.arguments}  # fmt: skip
    for operation in module.operations():
        computed |= {a.name for region in operation.regions for block in region.blocks for a in block.arguments}
        moved = operation.name in _MOVES and computed.isdisjoint(operation.operands)
        if operation.name not in LOADS and not moved and "_as_float" not in operation.attributes.get("symbol", ""):
            computed |= {value.name for value in operation.results if value.type.is_float}
    return frozenset(computed)


def device_bits(machine: Machine, name: str, value: Lanes) -> torch.Tensor:
    """The data of a value. Computed NaN with a sign is what the device has: 0x7fffffff (PTX ISA, section 9.7.3), or
    0x7fff of 16 bits."""
    data, integer = value.data, _INTEGERS.get(value.data.dtype)
    if integer is None or not data.numel() or not bool(data.max().isnan()) or name not in _computed(machine.module):
        return data
    bits = data.contiguous().view(integer)
    most = torch.iinfo(integer).max
    return torch.where(data.isnan() & (bits < 0), most, bits).view(data.dtype)
