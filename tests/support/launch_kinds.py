"""One small source for every kind of node that a plan can hold, with the task that it solves.

The tests without a GPU record and compile them, and interpret what can be interpreted; tests/gpu launches them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evo_kernel.tasks.builtin import text_of
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from evo_kernel.types import Source

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"

DOUBLE = '''
"""y = 2 x."""
import torch
CASES = {"check": [{"m": 100, "n": 132}], "search": [{"m": 1024, "n": 512}]}
def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)
def reference(x):
    return x * 2
'''

SCALE = DOUBLE.replace(
    "return x * 2", "return x * torch.arange(1, 5, device=x.device).repeat(x.shape[1] // 4)"
).replace("y = 2 x", "columns times 1, 2, 3, 4, 1, 2, ...")

TRANSPOSED = DOUBLE.replace("return x * 2", "return x.t() * 2").replace("y = 2 x", "y = 2 x^T")

MATMUL = '''
"""c = a @ b in bfloat16."""
import torch
CASES = {"check": [{"m": 96, "n": 72, "k": 80}], "search": [{"m": 512, "n": 512, "k": 512}]}
def inputs(case, generator, device):
    a = torch.randn(case["m"], case["k"], generator=generator, device=device).to(torch.bfloat16)
    b = torch.randn(case["k"], case["n"], generator=generator, device=device).to(torch.bfloat16)
    return a, b
def reference(a, b):
    return a @ b
'''

HOST_TMA = """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def double_kernel(x_desc, y_desc, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    y_desc.store([i, j], x_desc.load([i, j]) * 2)

def run(x):
    y = torch.empty_like(x)
    x_desc, y_desc = TensorDescriptor.from_tensor(x, [32, 64]), TensorDescriptor.from_tensor(y, [32, 64])
    double_kernel[(triton.cdiv(x.shape[0], 32), triton.cdiv(x.shape[1], 64))](x_desc, y_desc, 32, 64)
    return y
"""

HOST_TMA_MATMUL = """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def matmul_kernel(a_desc, b_desc, c_desc, inner, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, inner, K):
        total = tl.dot(a_desc.load([i, k]), b_desc.load([k, j]), total)
    c_desc.store([i, j], total.to(tl.bfloat16))

def run(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    descriptors = [TensorDescriptor.from_tensor(t, block) for t, block in ((a, [64, 64]), (b, [64, 64]), (c, [64, 64]))]
    grid = (triton.cdiv(c.shape[0], 64), triton.cdiv(c.shape[1], 64))
    matmul_kernel[grid](*descriptors, a.shape[1], 64, 64, 64)
    return c
"""

DEVICE_TMA = """
@triton.jit
def double_kernel(x_ptr, y_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    y_desc.store([i, j], x_desc.load([i, j]) * 2)

def run(x):
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.shape[0], 32), triton.cdiv(x.shape[1], 64))](x, y, x.shape[0], x.shape[1], 32, 64)
    return y
"""

FLAT = """
@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(z_ptr + at, x + tl.load(y_ptr + at, mask=at < n), mask=at < n)

def run(x):
    z = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 1024),)
    add_kernel[grid](x, x, z, x.numel(), SIZE=1024, OPTIONS)
    return z
"""

PDL = """
@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.extra.cuda.gdc_wait()
    sum = tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(z_ptr + at, sum, mask=at < n)

def run(x):
    y, z, n = torch.zeros_like(x), torch.empty_like(x), x.numel()
    half = torch.empty_like(x)
    grid = (triton.cdiv(n, 1024),)
    add_kernel[grid](x, y, half, n, SIZE=1024, launch_pdl=True)
    add_kernel[grid](x, half, z, n, SIZE=1024, launch_pdl=True)
    return z
"""

GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def double_kernel(x_ptr, y_ptr, n, SIZE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * SIZE + gl.arange(0, SIZE, layout=layout)
    gl.store(y_ptr + at, gl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)

def run(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), SIZE=1024)
    return y
"""

ASSERT = """
@triton.jit(debug=True)
def double_kernel(x_ptr, y_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.device_assert(x < LIMIT, "the input is too large")
    tl.store(y_ptr + at, x * 2, mask=at < n)

def run(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), SIZE=1024)
    return y
"""

CONSTANTS = """
@triton.jit
def scale_kernel(x_ptr, table_ptr, y_ptr, n, columns, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    factor = tl.load(table_ptr + at % columns % 4, mask=at < n)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)

def run(x):
    y = torch.empty_like(x)
    table = torch.tensor([0.5, 1.0, 1.5, 2.0], device=x.device) * 2
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, table, y, x.numel(), x.shape[1], SIZE=1024)
    return y
"""

COPIES = FLAT.replace("z = torch.empty_like(x)", "x = x.t().contiguous()\n    z = torch.empty_like(x)")

CUDA_SHARED = '''
from evo_kernel.cuda import kernel

double_kernel = kernel(r"""
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(256) double_kernel(const float* __restrict__ x, float* y, float by, size_t n)
{
    const float factors[2] = {1.0f, 2.0f};
    extern __shared__ float tile[];
    for (size_t at = blockIdx.x * (size_t)blockDim.x * blockDim.y; at < n; at += gridDim.x * (size_t)256) {
        size_t i = at + threadIdx.y * blockDim.x + threadIdx.x;
        if (i < n) tile[i % 16384] = x[i];
        __syncthreads();
        if (i < n) y[i] = tile[i % 16384] * by * factors[SECOND] / __half2float(__float2half(2.0f));
    }
}
""", "double_kernel", options=["-DSECOND=1"])

def run(x):
    y = torch.empty_like(x)
    double_kernel[64, (64, 4), 65536](x, y, 2, x.numel())
    return y
'''


ADDRESSES = """
@triton.jit
def double_kernel(tables, n, N: tl.constexpr):
    pair = tl.load(tables + 1).to(tl.pointer_type(tl.int64)) + 2 * tl.program_id(0)
    x = tl.load(pair).to(tl.pointer_type(tl.float32))
    y = (tl.load(pair + 1) - 8).to(tl.pointer_type(tl.float32)) + 2
    at = tl.arange(0, N)
    if tl.load(tables) == 0:
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def run(x):
    y = torch.empty_like(x)
    rows = torch.tensor([[one.data_ptr() for one in pair] for pair in zip(x, y)], device=x.device)
    tables = torch.tensor([0, rows.data_ptr()], device=x.device)
    double_kernel[(len(x),)](tables, x.shape[1], triton.next_power_of_2(x.shape[1]))
    return y
"""


@dataclass(frozen=True)
class Kind:
    """A source and the text of its task; `task` "" is the built-in softmax."""

    source: str
    task: str = DOUBLE
    interpreted: bool = True  # whether it is executed without a GPU

    def load(self, folder: Path) -> Task:
        if not self.task:
            return load("softmax")
        path = folder / "task.py"
        path.write_text(self.task)
        return load(path)

    @property
    def text(self) -> Source:
        return Source(self.source)


def flat(options: str) -> str:
    return HEAD + FLAT.replace("OPTIONS", options)


KINDS = {
    "host TMA": Kind(HEAD + HOST_TMA),
    "host TMA matmul": Kind(HEAD + HOST_TMA_MATMUL, MATMUL),
    "device TMA": Kind(HEAD + DEVICE_TMA),
    "dependent launches": Kind(HEAD + PDL, interpreted=False),
    "cooperative launch": Kind(flat("launch_cooperative_grid=True")),
    "cluster of 2": Kind(flat("num_ctas=2")),
    "cluster of 16": Kind(flat("num_ctas=16")),
    "Gluon": Kind(HEAD + GLUON),
    "assertion that holds": Kind(HEAD + ASSERT.replace("LIMIT", "1e30")),
    "constant table": Kind(HEAD + CONSTANTS, SCALE),
    "tables of addresses": Kind(HEAD + ADDRESSES),
    "copy": Kind(HEAD + COPIES.replace(", OPTIONS", ""), TRANSPOSED),
    "CUDA C++ softmax": Kind(text_of("softmax", "seed_cuda.py"), "", interpreted=False),
    "CUDA C++ with dynamic shared memory": Kind(HEAD + CUDA_SHARED, interpreted=False),
}
FAILING_ASSERT = HEAD + ASSERT.replace("LIMIT", "-1e30")
