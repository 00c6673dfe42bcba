"""Kernels that are compiled twice: by Triton from their Python in one go, and from their IR as the judge does.

`python -m tests.support.boundary` says for each whether the cubins are equal; it runs under any supported Triton.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra import libdevice

from evo_kernel.fitness.compile.child import compile_ir
from evo_kernel.fitness.record.launches import lower

TARGET = GPUTarget("cuda", 90, 32)
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # names changed after Triton 3.6
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@triton.jit
def rows(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, k, BLOCK: tl.constexpr):
    i, j, inner = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK, tl.arange(0, 32)
    a_ptrs = a_ptr + (i + tl.arange(0, BLOCK))[:, None] * k + inner[None, :]
    b_ptrs = b_ptr + inner[:, None] * k + (j + tl.arange(0, BLOCK))[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, k, 32):
        total = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), total)
        a_ptrs += 32
        b_ptrs += 32 * k
    c_ptrs = c_ptr + (i + tl.arange(0, BLOCK))[:, None] * k + (j + tl.arange(0, BLOCK))[None, :]
    tl.store(c_ptrs, total.to(tl.bfloat16))


@triton.jit
def descriptors(a_desc, b_desc, c_desc, k, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        total = tl.dot(a_desc.load([i, start]), b_desc.load([start, j]), total)
    c_desc.store([i, j], total.to(tl.bfloat16))


@triton.jit
def device_descriptors(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=[m, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=[m, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
    at = [tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK]
    y_desc.store(at, x_desc.load(at) * 2)


@triton.jit
def assembly(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code: tl.constexpr = '{ // "twice", loc("here")\n .reg .f32 t; add.f32 t, $1, $1; mov.f32 $0, t; }'
    y = tl.inline_asm_elementwise(code, "=f,f", [tl.load(x_ptr + at)], tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + at, y)


@triton.jit(noinline=True)
def apart(x, y):
    return x * y + 1.0


@triton.jit
def calls(x_ptr, y_ptr, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) * apart(by, by))


@triton.jit
def library(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, libdevice.erf(tl.load(x_ptr + at)) + tl.sin(tl.load(x_ptr + at)))


@triton.jit
def _larger(x, i, y, j):
    keep = (x > y) | ((x == y) & (i < j))
    return tl.where(keep, x, y), tl.where(keep, i, j)


@triton.jit
def regions(x_ptr, y_ptr, out_ptr, n, flag, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    value, index = tl.reduce((x, at), 0, _larger)
    total = tl.cumsum(x, 0) + value
    count = n
    while count > 0:
        total += tl.sqrt(count.to(tl.float32))
        count = count // 2
    if flag:
        tl.atomic_add(y_ptr + at % 7, total)
    tl.store(out_ptr, index)
    tl.static_assert(BLOCK > 1)


@triton.jit
def parts(pair, x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(pair[0] + at, tl.load(x_ptr + at) * pair[1])


@gluon.jit
def gluon_rows(x_ptr, y_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y_ptr + at, gl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@gluon.jit
def gluon_copy(x_desc, y_desc, BLOCK: gl.constexpr):
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    at = [gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK]
    mbarrier.expect(bar, x_desc.block_type.nbytes)
    _load(x_desc, at, bar, tile)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    _store(y_desc, at, tile)
    tma.store_wait(0)


@dataclass(frozen=True)
class Subject:
    """A kernel with one specialisation of it. `signature` ends with the constants."""

    kernel: Any
    signature: Mapping[str, Any]
    constants: tuple[int, ...] = ()
    divisible: tuple[tuple[int, ...], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def language(self) -> str:
        return "gluon" if self.kernel.is_gluon() else "triton"

    @property
    def source(self) -> ASTSource:
        make = GluonASTSource if self.language == "gluon" else ASTSource
        return make(self.kernel, dict(self.signature), self.constexprs, self.attributes)

    @property
    def constexprs(self) -> dict[tuple[int, ...], int]:
        first = len(self.signature) - len(self.constants)
        return {(first + i,): value for i, value in enumerate(self.constants)}

    @property
    def attributes(self) -> dict[tuple[int, ...], list[list[Any]]]:
        return {path: [["tt.divisibility", 16]] for path in self.divisible}


_MAPPED = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
_TILE = f"tensordesc<fp16[64, 64],{_MAPPED!r}>"
_BF16 = "tensordesc<bf16[64, 64]>"
_XY = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
_BLOCK = {"BLOCK": "constexpr"}
SUBJECTS = {
    "rows": Subject(rows, _XY | {"n": "i32"} | _BLOCK, (1024,), ((0,), (1,), (2,)), {"num_warps": 8}),
    "matmul": Subject(
        matmul, dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16") | {"k": "i32"} | _BLOCK, (128,),
        ((0,), (1,), (2,), (3,)), {"num_warps": 8, "num_stages": 4},
    ),
    "a cluster": Subject(
        matmul, dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16") | {"k": "i32"} | _BLOCK, (128,), ((0,), (1,)),
        {"num_ctas": 2, "maxnreg": 128},
    ),
    "host descriptors": Subject(
        descriptors, dict.fromkeys(("a_desc", "b_desc", "c_desc"), _BF16) | {"k": "i32"} | _BLOCK, (64,), ((3,),)
    ),
    "device descriptors": Subject(
        device_descriptors, dict.fromkeys(("x_ptr", "y_ptr"), "*fp16") | {"m": "i32", "n": "i32"} | _BLOCK, (64,),
        ((0,), (1,), (2,), (3,)),
    ),
    "inline assembly": Subject(assembly, _XY | _BLOCK, (256,), ((0,),)),
    "a function apart": Subject(calls, _XY | {"by": "fp32"} | _BLOCK, (256,), ((0,),)),
    "libdevice": Subject(library, _XY | _BLOCK, (256,), ((0,),), {"enable_fp_fusion": False}),
    "regions": Subject(regions, _XY | {"out_ptr": "*i32", "n": "i32", "flag": "u1"} | _BLOCK, (256,)),
    "a tuple": Subject(parts, {"pair": ("*fp16", "fp32"), "x_ptr": "*fp16"} | _BLOCK, (256,), ((0, 0), (1,))),
    "Gluon": Subject(gluon_rows, _XY | {"n": "i32"} | _BLOCK, (1024,), ((0,), (1,))),
    "Gluon with descriptors": Subject(gluon_copy, {"x_desc": _TILE, "y_desc": _TILE} | _BLOCK, (64,)),
}  # fmt: skip


def ir_of(subject: Subject) -> str:
    """What a recording holds of a kernel."""
    backend = make_backend(TARGET)
    return lower(
        subject.kernel, backend, backend.parse_options(dict(subject.options)), dict(subject.signature),
        subject.constexprs, subject.attributes,
    )  # fmt: skip


def compiled_from_ir(subject: Subject, code: str, folder: str) -> dict[str, Any]:
    """The compiler's child's answer for a recording's code, its cubin as bytes."""
    kernel = {
        "name": subject.kernel.__name__, "language": subject.language, "code": code,
        "options": list(subject.options.items()),
    }  # fmt: skip
    made = compile_ir(kernel, TARGET.arch, folder)
    return made | {"cubin": base64.b64decode(made["cubin"])}


def compiled_from_python(subject: Subject) -> Any:
    """Triton's compiled kernel."""
    return triton.compile(subject.source, target=TARGET, options=dict(subject.options))


def equal(whole: Any, parted: Mapping[str, Any]) -> bool:
    """Whether the code is the same, byte for byte, and all that a launch reads of the metadata."""
    told = {name: getattr(whole.metadata, name, None) for name in parted["metadata"]}
    return whole.asm["cubin"] == parted["cubin"] and _plain(told) == _plain(parted["metadata"])


def _plain(metadata: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(metadata, default=vars))


def main() -> int:
    os.environ |= {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    unequal = 0
    for name, subject in SUBJECTS.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            whole, parted = compiled_from_python(subject), compiled_from_ir(subject, ir_of(subject), folder)
            same = equal(whole, parted)
        unequal += not same
        print(f"{'same' if same else 'NOT THE SAME'}: {name}")
    return unequal


if __name__ == "__main__":
    sys.exit(main())
