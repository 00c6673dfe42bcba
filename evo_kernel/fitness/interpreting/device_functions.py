"""What Triton's interpreter lacks of the language: CUDA's math library, and reductions at the speed of numpy.

Used by emulation.py, in a process with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice as generic_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

from evo_kernel.fitness.interpreting.narrow_floats import decode, encode

_UNARY = {
    name: getattr(torch, name)
    for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "erfinv",
        "exp", "exp2", "expm1", "floor", "lgamma", "log", "log10", "log1p", "log2", "rsqrt", "sin", "sinh", "sqrt",
        "tan", "tanh", "trunc",
    )
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **_UNARY,
    "erfcx": torch.special.erfcx,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "fabs": torch.abs,
    "rint": torch.round,
    "nearbyint": torch.round,
    "round": lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x)),
    "llrint": lambda x: torch.round(x).long(),
    "llround": lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x)).long(),
    "exp10": lambda x: torch.pow(10.0, x),
    "cbrt": lambda x: torch.copysign(x.abs().double().pow(1 / 3).to(x.dtype), x),
    "saturate": lambda x: x.clamp(0.0, 1.0),
    "frcp_rn": torch.reciprocal,
    "frsqrt_rn": torch.rsqrt,
    "fsqrt_rn": torch.sqrt,
    "isnan": lambda x: torch.isnan(x).int(),
    "isinf": lambda x: torch.isinf(x).int(),
    "finite": lambda x: torch.isfinite(x).int(),
    "signbit": lambda x: torch.signbit(x).int(),
    "normcdf": lambda x: 0.5 * torch.erfc(-x / 2**0.5),
    "pow": torch.pow,
    "powi": lambda x, n: torch.pow(x, n.to(x.dtype)),
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "fdim": lambda x, y: (x - y).clamp(min=0),
    "fdividef": torch.div,
    "fdiv_rn": torch.div,
    "fadd_rn": torch.add,
    "fsub_rn": torch.sub,
    "fmul_rn": torch.mul,
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(z.dtype),
    "fmaf_rn": lambda x, y, z: (x.double() * y.double() + z.double()).to(z.dtype),
}


def find(symbol: str) -> Callable[..., torch.Tensor] | None:
    """The torch function for a symbol of CUDA's math library (`__nv_tanhf`, `__nv_fast_expf`); None if unknown."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    for spelling in (name, name[:-1] if name[-1:] in ("f", "d") else name):
        if spelling in _FUNCTIONS:
            return _FUNCTIONS[spelling]
    return None


class _NothingToRestore:
    def restore(self) -> None:
        """The language stays patched: the process interprets kernels and nothing else."""


def take_single_elements(interpreter: Any) -> None:
    """Let scalars that are arrays of one element be indices: Triton 3.6 converts them as numpy 2.4 refuses to."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched


def patch_language(interpreter: Any) -> None:
    """Patch `triton.language` once for the life of this process: Triton does it anew for every call of a function."""
    if getattr(interpreter, "_language_is_patched", False):
        return
    interpreter._patch_attr = functools.partial(_patch_attribute, interpreter)
    take_single_elements(interpreter)
    anchor = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    interpreter._patch_lang(anchor)
    interpreter._patch_lang = lambda function: _NothingToRestore()
    interpreter.ReduceOps = _reduce_operations(interpreter)
    interpreter.ScanOps = _scan_operations(interpreter)
    for name, member in inspect.getmembers(cuda_libdevice):
        if tl.core.is_builtin(member):
            setattr(cuda_libdevice, name, _bound(interpreter, member))
            setattr(generic_libdevice, name, getattr(cuda_libdevice, name))
    setattr(tl, "range", functools.partial(counted, interpreter))  # noqa: B010
    interpreter._get_np_dtype = _remembered(interpreter._get_np_dtype)
    interpreter._language_is_patched = True


def counted(interpreter: Any, *bounds: Any, **options: Any) -> Iterator[Any]:
    """`range` and `tl.range` of a kernel: to the compiler an index is a scalar tensor, not a Python number."""
    for number in numbers_of(*bounds, **options):
        yield interpreter._implicit_cvt(number)


def numbers_of(*bounds: Any, **options: Any) -> range:
    """What a kernel's `range` or `tl.range` counts through: its bounds may be tensors, its step named."""
    step = options.get("step")
    return range(*map(operator.index, (*bounds, step) if step is not None else bounds))


def _remembered(original: Callable[[Any], np.dtype]) -> Callable[[Any], np.dtype]:
    """Triton builds its table of dtypes anew with every operation: a tenth of the interpreter's time."""
    known: dict[str, np.dtype] = {}

    def numpy_dtype(dtype: Any) -> np.dtype:
        name = dtype.scalar.name
        if name not in known:
            known[name] = original(dtype)
        return known[name]

    return numpy_dtype


def _patch_attribute(interpreter: Any, owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """In place of Triton's own: 3.6 would bind the builder of this moment for ever."""
    del builder
    scope.set_attr(owner, name, _bound(interpreter, member))


def _bound(interpreter: Any, member: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        named.pop("_semantic", None)
        return member(*args, **named, _semantic=interpreter.interpreter_semantic)

    return call


def _widened(operations: Any, inputs: tuple[Any, ...], apply: Callable[[tuple[Any, ...]], Any]) -> Any:
    """Run a reduction or scan on float32 copies of bfloat16 and float8 inputs, and round its results back."""
    narrow = [value.dtype if value.dtype.primitive_bitwidth < 32 and value.dtype.is_floating() else None
              for value in inputs]  # fmt: skip
    narrow = [None if dtype == tl.float16 else dtype for dtype in narrow]
    if not any(narrow):
        return apply(inputs)
    wide = tuple(
        operations.to_tensor(decode(value.handle.data, dtype), tl.float32) if dtype else value
        for value, dtype in zip(inputs, narrow, strict=True)
    )
    results = apply(wide)
    single = not isinstance(results, (tuple, list))
    dtypes = [*narrow, *[None] * 8]
    rounded = [
        operations.to_tensor(encode(value.handle.data, dtype), dtype) if dtype and value.dtype == tl.float32 else value
        for value, dtype in zip([results] if single else results, dtypes, strict=False)
    ]
    return rounded[0] if single else rounded


def _combined(operations: Any, left: list[Any], right: list[Any]) -> list[np.ndarray]:
    result = operations.combine_fn.fn(*left, *right)
    parts = result if isinstance(result, tuple) else (result,)
    return [part.handle.data if isinstance(part, tl.core.tensor) else np.asarray(part) for part in parts]


def _reduce_operations(interpreter: Any) -> type:
    class ReduceOps(interpreter.ReduceOps):
        """Reductions by any function: neighbours are combined, whole arrays at a time."""

        def apply_impl(self, input: tuple[Any, ...]) -> Any:
            interpreter.interpreter_builder.note_reduction(input[0].handle.data.size * len(input))
            return _widened(self, input, super().apply_impl)

        def generic_reduce(self, input: tuple[Any, ...]) -> list[Any]:
            whole = self.axis is None
            data = [x.handle.data.reshape(-1) if whole else np.moveaxis(x.handle.data, self.axis, 0) for x in input]
            rank = input[0].handle.data.ndim
            while len(data[0]) > 1:
                pairs = [(d[0 : len(d) - len(d) % 2 : 2], d[1::2]) for d in data]
                left = [self.to_tensor(a, x.dtype) for (a, _), x in zip(pairs, input, strict=True)]
                right = [self.to_tensor(b, x.dtype) for (_, b), x in zip(pairs, input, strict=True)]
                merged = [
                    np.broadcast_to(m, p[0].shape) for m, p in zip(_combined(self, left, right), pairs, strict=True)
                ]
                rest = [d[len(d) - len(d) % 2 :] for d in data]
                data = [np.concatenate([m, r]).astype(d.dtype) for m, r, d in zip(merged, rest, data, strict=True)]
            results = [d[0] for d in data]
            if self.keep_dims:
                shape = (1,) * rank if whole else None
                results = [r.reshape(shape) if shape else np.expand_dims(r, self.axis) for r in results]
            return [self.to_tensor(r, x.dtype) for r, x in zip(results, input, strict=True)]

    return ReduceOps


def _scan_operations(interpreter: Any) -> type:
    class ScanOps(interpreter.ScanOps):
        """Scans by any associative function, in a logarithm of the length (Hillis and Steele, 1986)."""

        def apply_impl(self, input: tuple[Any, ...]) -> Any:
            interpreter.interpreter_builder.note_reduction(input[0].handle.data.size * len(input))
            return _widened(self, input, super().apply_impl)

        def generic_scan(self, input: tuple[Any, ...]) -> list[Any]:
            data = [np.moveaxis(x.handle.data, self.axis, 0).copy() for x in input]
            step = 1
            while step < len(data[0]):
                left = [self.to_tensor(np.roll(d, step, axis=0), x.dtype) for d, x in zip(data, input, strict=True)]
                right = [self.to_tensor(d.copy(), x.dtype) for d, x in zip(data, input, strict=True)]
                for d, merged in zip(data, _combined(self, left, right), strict=True):
                    d[step:] = np.broadcast_to(merged, d.shape)[step:]
                step *= 2
            moved = [np.moveaxis(d, 0, self.axis) for d in data]
            return [self.to_tensor(np.ascontiguousarray(d), x.dtype) for d, x in zip(moved, input, strict=True)]

    return ScanOps
