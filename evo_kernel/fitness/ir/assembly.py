"""Executes inline assembly of a single PTX instruction on 32-bit elements; other assembly is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import Lanes, any_undefined
from evo_kernel.fitness.ir.libdevice import device_function
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.reductions import tf32

_INSTRUCTION = re.compile(r"\s*([a-z0-9.]+) \$0((?:, *(?:\$\d|-?\d{1,9}))+) *;?\s*")
_LOW = 0xFFFFFFFF


def _bits(name: str) -> Callable[..., torch.Tensor]:
    function = device_function(name)
    assert function
    return lambda x: function(x.to(torch.int32)).long()


_MOVES = {"mov.b32", "mov.u32", "mov.s32", "mov.f32"}
_ON_INTEGERS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"{name}.{kind}": made for kind in ("s32", "u32") for name, made in (
        ("add", torch.add), ("sub", torch.sub), ("mul.lo", torch.mul), ("mad.lo", lambda x, y, z: x * y + z))},
    "and.b32": torch.bitwise_and,
    "or.b32": torch.bitwise_or,
    "xor.b32": torch.bitwise_xor,
    "not.b32": torch.bitwise_not,
    "min.s32": torch.minimum,
    "max.s32": torch.maximum,
    "min.u32": lambda x, y: torch.minimum(x & _LOW, y & _LOW),
    "max.u32": lambda x, y: torch.maximum(x & _LOW, y & _LOW),
    "shl.b32": lambda x, n: torch.where(n & _LOW < 32, x << (n & 31), 0),
    "shr.u32": lambda x, n: torch.where(n & _LOW < 32, (x & _LOW) >> (n & 31), 0),
    "shr.s32": lambda x, n: x >> (n & _LOW).clamp(max=31),
    "popc.b32": _bits("__nv_popc"),
    "clz.b32": _bits("__nv_clz"),
    "brev.b32": _bits("__nv_brev"),
}  # fmt: skip
_ON_FLOATS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"{name}{mode}.f32": made for mode in ("", ".rn") for name, made in (
        ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul))},
    "min.f32": torch.fmin,
    "max.f32": torch.fmax,
    "abs.f32": torch.abs,
    "neg.f32": torch.neg,
    **{f"{name}.approx{flush}.f32": made for flush in ("", ".ftz") for name, made in (
        ("ex2", torch.exp2), ("lg2", torch.log2), ("rcp", torch.reciprocal), ("sqrt", torch.sqrt),
        ("rsqrt", torch.rsqrt), ("sin", torch.sin), ("cos", torch.cos))},
    "tanh.approx.f32": lambda x: tf32(torch.tanh(x)),  # a relative error of 2^-11 (PTX ISA, section 9.7.3)
}  # fmt: skip


@handles("tt.elementwise_inline_asm")
def _assembly(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    texts = re.match(r'"([^"\\]*)"', operation.head.strip())
    match = _INSTRUCTION.fullmatch(texts[1]) if texts else None
    constraints = operation.attributes.get("constraints", "").strip('"').replace(" ", "").split(",")
    elements = {value.type.element for value in (*operation.results, *operands)}
    packed = operation.attributes.get("packed_element", "1")[0]
    table, letter = _table(match[1] if match else "", elements) if packed == "1" else ({}, "")
    if match is None or match[1] not in table or constraints != [f"={letter}", *[letter] * len(operands)]:
        raise Unsupported(f"the executor does not know the inline assembly {operation.head[:80]}")
    marks = any_undefined(operands)
    values = []
    for word in re.findall(r"[$\d-]+", match[2]):
        if word[0] != "$":
            number = torch.tensor(int(word))
            values.append(number if letter == "r" else number.int().view(torch.float32))  # moved as bits
        elif 1 <= int(word[1:]) <= len(operands):
            data = operands[int(word[1:]) - 1].data
            values.append(data.long() if letter == "r" else data)
        else:
            raise Unsupported(f"inline assembly with the operand {word}")
    try:
        data = table[match[1]](*values)
    except TypeError as error:
        raise Unsupported(f"inline assembly with {len(values)} operands: {match[0][:80]}") from error
    return [Lanes(operation.results[0].type, data.to(operation.results[0].type.dtype), undefined=marks)]


def _table(instruction: str, elements: set[str]) -> tuple[dict[str, Callable[..., torch.Tensor]], str]:
    """Instructions on elements of one type, and the constraint letter of its registers."""
    if instruction in _MOVES and elements in ({"i32"}, {"f32"}):
        return dict.fromkeys(_MOVES, lambda x: x), "r" if elements == {"i32"} else "f"
    return {"i32": (_ON_INTEGERS, "r"), "f32": (_ON_FLOATS, "f")}.get("".join(elements), ({}, ""))
