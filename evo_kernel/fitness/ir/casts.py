"""Handlers of type conversions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from evo_kernel.fitness.ir.contractions import narrowed
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import AddressWord, Lanes, as_address, as_number, nothing
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.nan_bits import device_bits
from evo_kernel.fitness.ir.pointwise import as_sum, elementwise_result, unsigned_of
from evo_kernel.fitness.ir.types import Type


@handles("arith.extsi", "arith.trunci")
def _resize(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,), type_ = operands, operation.results[0].type
    if type_.element == "i1":
        return elementwise_result(operation, (value.data & 1).bool(), operands)
    if value.type.element == "i1":
        return elementwise_result(operation, -value.data.to(type_.dtype), operands)
    if value.has_sum:
        return [as_sum(type_, value.sum, value.undefined)]
    return elementwise_result(operation, value.data.to(type_.dtype), operands)


@handles("arith.extui")
def _widen(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,), type_ = operands, operation.results[0].type
    if value.type.element == "i1":
        return elementwise_result(operation, value.data.to(type_.dtype), operands)
    if value.has_sum and value.sum.low >= 0:
        return [as_sum(type_, value.sum, value.undefined)]
    return elementwise_result(operation, unsigned_of(value.data, value.type).to(type_.dtype), operands)


@handles("arith.sitofp", "arith.uitofp")
def _to_float(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,), type_ = operands, operation.results[0].type
    whole = value.data if operation.name == "arith.sitofp" else unsigned_of(value.data, value.type)
    if value.type.element == "i1":
        data = whole.to(type_.dtype)
        return elementwise_result(operation, -data if operation.name == "arith.sitofp" else data, operands)
    if operation.name == "arith.uitofp" and value.type.bits == 64:
        above, half = whole < 0, whole >> 1 & (1 << 63) - 1 | whole & 1
        data = _rounded(torch.where(above, half, whole), value.type, type_)
        return elementwise_result(operation, torch.where(above, data * 2, data), operands)
    return elementwise_result(operation, _rounded(whole, value.type, type_), operands)


def _rounded(whole: torch.Tensor, source: Type, made: Type) -> torch.Tensor:
    """Integers as floats, rounded once: torch rounds to float32 on its way to bfloat16. In float16, what
    float32 would round is infinite."""
    if made.element != "bf16" or source.bits <= 16:
        return whole.to(made.dtype)
    if source.bits == 64:  # float64 does not hold all of them
        odd = whole & ~0xFFF | torch.where(whole & 0xFFF != 0, 0x1000, 0)
        whole = torch.where(whole.abs() < 1 << 53, whole, odd)
    return narrowed(whole.double(), made.dtype)


@handles("arith.fptosi", "arith.fptoui")
def _to_integer(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,), type_ = operands, operation.results[0].type
    bits = type_.bits
    low, high = (0.0, 2.0**bits) if operation.name == "arith.fptoui" else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    whole = torch.trunc(value.data.double())
    outside = ~((whole >= low) & (whole < high))  # NaN too
    whole = torch.where(outside, 0.0, whole) if bool(outside.any()) else whole
    if operation.name == "arith.fptoui" and bits == 64:
        data = torch.from_numpy(np.ascontiguousarray(whole.numpy()).astype(np.uint64).view(np.int64))
    elif type_.element == "i1":
        data = whole != 0
    else:
        data = whole.long().to(type_.dtype)
    return elementwise_result(operation, data, operands, outside)


@handles("arith.extf", "arith.truncf")
def _round(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    return elementwise_result(operation, narrowed(operands[0].data, operation.results[0].type.dtype), operands)


_FINITE = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0}


@handles("tt.fp_to_fp")
def _float_to_float(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    data, type_ = operands[0].data, operation.results[0].type
    source = operands[0].type
    if type_.bits > source.bits:
        return elementwise_result(operation, widened(data, type_.dtype), operands)
    if operation.attributes.get("rounding") == "rtz":
        if type_.element not in ("f16", "bf16") or source.element != "f32":
            raise Unsupported(f"tt.fp_to_fp from {source.element} to {type_.element} towards zero")
        return elementwise_result(operation, _towards_zero(data, type_), operands)
    if type_.element in _FINITE:  # the device saturates: cvt.rn.satfinite
        most = _FINITE[type_.element]
        data = data.float().clamp(-most, most)
    return elementwise_result(operation, narrowed(data, type_.dtype), operands)


def widened(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats as a type of more bits, or of as many.

    Triton widens e5m2 to bf16 by a multiplication: infinities and NaN become numbers of the next binade.
    """
    wide = data.float()
    if (data.dtype, dtype) != (torch.float8_e5m2, torch.bfloat16):
        return wide.to(dtype)
    codes = data.contiguous().view(torch.uint8).int()
    numbers = (1.0 + (codes & 3) / 4.0) * 65536.0 * torch.where(codes >= 128, -1.0, 1.0)
    return torch.where((codes & 0x7C) == 0x7C, numbers, wide).to(dtype)


def _towards_zero(data: torch.Tensor, type_: Type) -> torch.Tensor:
    rounded = data.to(type_.dtype)
    larger = (rounded.float().abs() > data.abs()) & data.isfinite()
    bits = rounded.view(torch.int16)
    return torch.where(larger, bits - 1, bits).view(type_.dtype)


@handles("tt.bitcast", "arith.bitcast")
def _bitcast(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,), type_ = operands, operation.results[0].type
    if "ptr" in (type_.element, value.type.element) or (isinstance(value, AddressWord) and type_.element == "i64"):
        return [_address(machine, type_, value)]
    data = device_bits(machine, operation.operands[0], value)
    if value.type.element == "i1" or type_.element == "i1":
        data = data.view(torch.int8) if type_.element != "i1" else data
        return elementwise_result(operation, data.to(type_.dtype), operands)
    return elementwise_result(operation, data.contiguous().view(type_.dtype), operands)


@handles("tt.int_to_ptr", "tt.ptr_to_int")
def _cast_address(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    return [_address(machine, operation.results[0].type, operands[0])]


def _address(machine: Machine, type_: Type, value: Lanes) -> Lanes:
    """A pointer as an integer, or vice versa. An address that is made of numbers is undefined."""
    given, made = value.type.element == "ptr", type_.element == "ptr"
    if (given and made) or not machine.memory.strict:
        return Lanes(type_, sum_=value.sum, undefined=value.undefined)
    word = value if given else as_address(value)
    cast = Lanes(type_, sum_=word.sum, undefined=word.undefined)
    return cast if made else AddressWord(cast, nothing(type_) if given else as_number(value))
