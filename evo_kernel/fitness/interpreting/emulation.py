"""Triton's interpreter, mended: a builder that is right for bfloat16 and float8, and that checks every access.

Import only in a process that set TRITON_INTERPRET=1 before Triton was imported. What Triton's own interpreter (3.6 to
3.9) gets wrong and this builder mends:
    bfloat16, float8   are kept as bare integers, and arithmetic, comparisons, reductions and `tl.dot` work on those;
                       here they are widened to float32 and rounded to nearest even, as compiled code does
    tl.dot             fp32 operands keep full precision; here tf32, tf32x3 and bf16x3 lose what they lose on the GPU
    bounds             accesses outside every buffer pass, or crash; here they raise KernelFault
    libdevice, reduce  CUDA's math library is missing; custom reductions and scans go element by element
Not mended: float-to-integer conversion out of range, approximate division and exp (exact here), ordering of atomics.
"""

# Triton 3.6 hands cache and eviction policies over as two arguments, 3.9 as one: neither matters here.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton import knobs
from triton._C.libtriton import interpreter as _native
from triton._C.libtriton import ir as _ir
from triton.runtime import interpreter

from evo_kernel.fitness.interpreting import device_functions
from evo_kernel.fitness.interpreting.narrow_floats import NARROW, decode, encode

GAP_BYTES = 1 << 20
"""Between buffers, so that an access that runs off one does not land in another."""
_PAGE = 4096

Handle = interpreter.TensorHandle


class KernelFault(Exception):
    """The kernel does what a GPU would not survive, or fails while it runs. The message is one sentence.

    `of_text`: found in how the kernel is written. Other text may compile to the same code and be free of it.
    """

    def __init__(self, message: str, of_text: bool = False) -> None:
        super().__init__(message)
        self.of_text = of_text


class NotInterpretable(Exception):
    """The kernel uses what only a GPU can execute (inline assembly, Gluon, ...). The message says what."""


class Memory:
    """Buffers in one lazily backed mapping, far apart. Pages that nothing touches cost nothing."""

    def __init__(self, sizes: Sequence[int], names: Sequence[str]) -> None:
        self.names = names
        offsets, end = [], GAP_BYTES
        for size in sizes:
            offsets.append(end)
            end += -(-max(size, 1) // _PAGE) * _PAGE + GAP_BYTES
        self._bytes = np.frombuffer(mmap.mmap(-1, end), dtype=np.uint8)
        base = self._bytes.ctypes.data
        self.starts = np.array([base + offset for offset in offsets], dtype=np.uint64)
        self.ends = self.starts + np.array(sizes, dtype=np.uint64)
        self._offsets, self._sizes = offsets, list(sizes)

    def of(self, index: int) -> torch.Tensor:
        """The bytes of a buffer, shared."""
        return torch.from_numpy(self._bytes[self._offsets[index] : self._offsets[index] + self._sizes[index]])

    def buffer_of(self, address: int) -> int:
        """Index of the buffer that starts at or before an address; -1 for none."""
        return int(np.searchsorted(self.starts, np.uint64(address), side="right")) - 1

    def check(self, addresses: np.ndarray, item: int, what: str) -> int:
        """Raise KernelFault unless all addresses lie, aligned, inside buffers. Returns the first one's buffer."""
        low, high = int(addresses.min()), int(addresses.max()) + item
        index = self.buffer_of(low)
        if index < 0 or high > int(self.ends[index]):
            self._find_fault(addresses, item, what)
        if int(np.bitwise_or.reduce(addresses, axis=None)) & (item - 1):
            raise KernelFault(f"{what} at an address that is not a multiple of its {item} bytes")
        return index

    def _find_fault(self, addresses: np.ndarray, item: int, what: str) -> None:
        flat = addresses.ravel()
        index = np.searchsorted(self.starts, flat, side="right").astype(np.int64) - 1
        ends = np.where(index >= 0, self.ends[np.maximum(index, 0)], 0)
        outside = (index < 0) | (flat + np.uint64(item) > ends)
        if not outside.any():
            return
        address, nearest = int(flat[outside][0]), int(index[outside][0])
        after = address + item - int(self.ends[nearest]) if nearest >= 0 else None
        before = int(self.starts[nearest + 1]) - address if nearest + 1 < len(self.starts) else None
        if after is not None and (before is None or after <= before):
            where = f"{after} bytes past the end of {self.names[nearest]}"
        elif before is not None:
            where = f"{before} bytes before {self.names[nearest + 1]}"
        else:
            where = "outside every buffer"
        if max(x for x in (after, before, 0) if x is not None) > 1 << 40:
            where = "through a pointer that points nowhere"
        raise KernelFault(f"{what} reaches {where} ({int(outside.sum())} of {flat.size} elements lie outside)")


def _plain(handle: Any) -> np.ndarray:
    """A handle's numbers. Results of comparisons carry booleans whatever their handle's dtype says."""
    return handle.data if handle.data.dtype == np.bool_ else decode(handle.data, handle.dtype.scalar)


def wrap(values: np.ndarray, dtype: tl.dtype) -> Any:
    if values.dtype == np.bool_:
        return Handle(values, tl.int1)
    return Handle(encode(values, dtype) if dtype in NARROW else values.astype(interpreter._get_np_dtype(dtype)), dtype)


def _is_narrow(*handles: Any) -> bool:
    return any(handle.dtype.scalar in NARROW for handle in handles)


class Builder(interpreter.InterpreterBuilder):
    """Executes one program at a time over `memory`. `kernel` names the running kernel in messages."""

    def __init__(self, memory: Memory, options: dict[str, Any] | None = None, kernel: str = "") -> None:
        super().__init__()
        self.memory, self.kernel = memory, kernel
        chosen = (options or {}).get("default_dot_input_precision", "tf32")
        self.options = dataclasses.replace(
            self.options, sanitize_overflow=False, default_dot_input_precision=chosen,
            allowed_dot_input_precisions=("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"),
            debug=bool((options or {}).get("debug", False)),
        )  # fmt: skip

    def access(self, ptrs: Any, mask: np.ndarray | None, what: str) -> None:
        """Called before every access, with the mask of what really happens (None: everything)."""
        item = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        addresses = ptrs.data if mask is None or mask.all() else ptrs.data[np.broadcast_to(mask, ptrs.data.shape)]
        if addresses.size:
            self.memory.check(addresses, item, f"{self.kernel}, program {self.grid_idx}: {what}")

    def note_reduction(self, elements: int) -> None:
        """Called before every reduction and scan."""

    def create_assert(self, condition: Any, message: Any) -> None:
        if not np.all(condition.data):
            raise KernelFault(f"{self.kernel}, program {self.grid_idx}: the assertion `{message}` fails")

    # --- memory -----------------------------------------------------------------------------------------------------

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *policy: Any, **named: Any) -> Any:
        self.access(ptrs, mask.data, "a load")
        dtype = ptrs.get_element_ty()
        kind = interpreter._get_np_dtype(dtype)
        if other is None:
            other = Handle(np.zeros_like(ptrs.data, dtype=kind), dtype)
        return Handle(_native.load(ptrs.data, mask.data, other.data, kind), dtype)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *policy: Any) -> Any:
        self.access(ptrs, mask.data, "a store")
        return _native.store(ptrs.data, value.data, mask.data)

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        self.access(ptr, mask.data, "an atomic operation")
        if val.dtype.scalar in (tl.bfloat16, tl.float16) and rmwOp == _ir.ATOMIC_OP.FADD:
            return self._add_one_by_one(ptr, val, mask)
        return super().create_atomic_rmw(rmwOp, ptr, val, mask, sem, scope)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        self.access(ptr, None, "an atomic operation")
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def _add_one_by_one(self, ptr: Any, val: Any, mask: Any) -> Any:
        dtype = val.dtype.scalar
        kind = interpreter._get_np_dtype(dtype)
        before = np.zeros(ptr.data.shape, dtype=kind)
        for place in zip(*np.nonzero(np.broadcast_to(mask.data, ptr.data.shape)), strict=True):
            one, yes = ptr.data[place].reshape(1), np.ones(1, dtype=bool)
            old = _native.load(one, yes, np.zeros(1, dtype=kind), kind)
            before[place] = old[0]
            total = decode(old, dtype).astype(np.float32) + decode(val.data[place].reshape(1), dtype)
            _native.store(one, wrap(total, dtype).data, yes)
        return Handle(before, dtype)

    def _descriptor_pointers(self, desc: Any, offsets: Sequence[Any]) -> tuple[Any, Any]:
        """Addresses of a block of a tensor descriptor, and which of them lie inside its tensor."""
        item = desc.base.dtype.element_ty.primitive_bitwidth // 8
        rank, block = len(desc.block_shape), [int(size) for size in desc.block_shape]
        addresses = np.zeros(block, dtype=np.int64) + int(desc.base.data.item())
        inside = np.ones(block, dtype=bool)
        for axis in range(rank):
            shape = [1] * rank
            shape[axis] = block[axis]
            at = (int(offsets[axis].data.item()) + np.arange(block[axis], dtype=np.int64)).reshape(shape)
            addresses = addresses + item * at * int(desc.strides[axis].data.item())
            inside = inside & (at >= 0) & (at < int(desc.shape[axis].data.item()))
        return Handle(addresses.astype(np.uint64), desc.base.dtype.scalar), Handle(inside, tl.int1)

    def create_descriptor_load(self, desc: Any, indices: Sequence[Any], *policy: Any) -> Any:
        ptrs, mask = self._descriptor_pointers(desc, indices)
        dtype = ptrs.get_element_ty()
        filling = np.full(ptrs.data.shape, np.nan if desc.padding == _ir.PADDING_OPTION.PAD_NAN else 0.0)
        loaded = self.create_masked_load(ptrs, mask, wrap(filling, dtype))
        if getattr(desc, "round_f32_to_tf32", False) and dtype == tl.float32:
            return Handle(_tf32(loaded.data), dtype)
        return loaded

    def create_descriptor_store(self, desc: Any, value: Any, indices: Sequence[Any]) -> Any:
        ptrs, mask = self._descriptor_pointers(desc, indices)
        return self.create_masked_store(ptrs, value, mask)

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Any, indices: Sequence[Any]) -> None:
        ptrs, mask = self._descriptor_pointers(desc, indices)
        names = {"ADD": np.add, "MIN": np.minimum, "MAX": np.maximum, "AND": np.bitwise_and, "OR": np.bitwise_or}
        kinds = {getattr(_ir.DESCRIPTOR_REDUCE_KIND, name): combine for name, combine in names.items()}
        combine = kinds.get(kind, np.bitwise_xor)
        old = self.create_masked_load(ptrs, mask, None)
        self.create_masked_store(ptrs, wrap(combine(_plain(old), _plain(value)), value.dtype.scalar), mask)

    def get_bf16(self, value: float) -> Any:
        return Handle(encode(np.array([value]), tl.bfloat16), tl.bfloat16)

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        if _is_narrow(lhs):
            return wrap(op(_plain(lhs), _plain(rhs)), lhs.dtype.scalar)
        result = super().binary_op(lhs, rhs, op)
        return Handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        return wrap(op(_plain(arg)), arg.dtype.scalar) if _is_narrow(arg) else super().unary_op(arg, op)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Callable[..., Any]) -> Any:
        if op is np.where or not _is_narrow(other):
            return super().ternary_op(lhs, rhs, other, op)
        return wrap(op(_plain(lhs), _plain(rhs), _plain(other)), other.dtype.scalar)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if _is_narrow(z):
            return wrap(_plain(x).astype(np.float64) * _plain(y) + _plain(z), z.dtype.scalar)
        return super().create_fma(x, y, z)

    def create_erf(self, arg: Any) -> Any:
        return self.unary_op(arg, lambda x: torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy())

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        if _is_narrow(src) or dst_type.scalar in NARROW:
            values = _plain(src)
            if dst_type.scalar == tl.int1:
                return Handle(values != 0, tl.int1)
            return wrap(values.astype(np.float64) if values.dtype == np.bool_ else values, dst_type.scalar)
        return Handle(src.data.astype(interpreter._get_np_dtype(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        toward_zero = rounding_mode == _ir.ROUNDING_MODE.RTZ
        if dst_type.scalar == tl.bfloat16:
            return Handle(encode(_plain(src), tl.bfloat16, toward_zero), tl.bfloat16)
        result = self.cast_impl(src, dst_type)
        if toward_zero and dst_type.scalar == tl.float16:
            too_far = np.abs(result.data.astype(np.float64)) > np.abs(_plain(src))
            return Handle(np.where(too_far, np.nextafter(result.data, np.float16(0)), result.data), tl.float16)
        return result

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        left, right = _plain(a), _plain(b)
        if np.issubdtype(left.dtype, np.integer):
            product = np.matmul(left.astype(np.int32), right.astype(np.int32))
        elif left.dtype == np.float64:
            product = np.matmul(left, right)
        else:
            wide = left.dtype == np.float32 and not _is_narrow(a)
            product = _product(left.astype(np.float32), right.astype(np.float32), input_precision if wide else None)
        return wrap(product + _plain(d), d.dtype.scalar)

    # --- what only a GPU has ----------------------------------------------------------------------------------------

    def create_extern_elementwise(
        self, libName: str, libPath: str, symbol: str, argList: Sequence[Any], retType: Any, isPure: bool
    ) -> Any:
        function = device_functions.find(symbol)
        if function is None:
            raise NotInterpretable(f"{self.kernel} calls {symbol}, which only a GPU can execute")
        arguments = [torch.from_numpy(np.ascontiguousarray(_plain(arg))) for arg in argList]
        return wrap(function(*arguments).numpy(), retType.scalar)

    def create_inline_asm(self, *args: Any) -> Any:
        raise NotInterpretable(f"{self.kernel} holds inline assembly, which only a GPU can execute")

    def create_print(self, *args: Any) -> None:
        """Programs print to nobody."""


def _tf32(values: np.ndarray) -> np.ndarray:
    """float32 as the tensor cores read it for tf32: the last 13 bits dropped."""
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _product(left: np.ndarray, right: np.ndarray, precision: Any) -> np.ndarray:
    """A float32 product with its operands at an input precision; None for operands that were narrow already."""
    if precision == _ir.INPUT_PRECISION.TF32:
        return np.matmul(_tf32(left), _tf32(right))
    if precision == getattr(_ir.INPUT_PRECISION, "BF16x3", "none"):
        (a, low_a), (b, low_b) = _split(left), _split(right)
        return np.matmul(a, b) + np.matmul(a, low_b) + np.matmul(low_a, b)
    if precision == _ir.INPUT_PRECISION.TF32x3:
        (a, low_a), (b, low_b) = (_high_and_low(values) for values in (left, right))
        return np.matmul(low_a, b) + np.matmul(a, low_b) + np.matmul(a, b)
    return np.matmul(left, right)


def _high_and_low(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 as tf32x3 splits it: rounded to tf32, ties away from zero, and the same of what is left."""
    high = _rounded_tf32(values)
    return high, _rounded_tf32(np.where(np.isfinite(high), values - high, 0))


def _rounded_tf32(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def _split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = decode(encode(values, tl.bfloat16), tl.bfloat16)
    return high, decode(encode(values - high, tl.bfloat16), tl.bfloat16)


def install(builder: Builder) -> None:
    """Make `builder` the one that Triton's interpreter uses in this process."""
    if not knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET=1 must be set before Triton is imported")
    interpreter.interpreter_builder = builder
    interpreter.interpreter_semantic = interpreter.TritonSemantic(builder)
    device_functions.patch_language(interpreter)
