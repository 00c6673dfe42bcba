"""Kernel modules in the house style for the tests of rewrites, and a child process that runs many of them at once."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from evo_kernel.types import CaseCard, CaseKind, TaskCard
from tests.support.scripts import script

HEAD = '"""A sample."""\n\nimport torch\nimport triton\nimport triton.language as tl\n\n'

SOFTMAX = (
    HEAD
    + """BLOCK = 64
NUM_WARPS = 4


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, x_stride, y_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    # the largest value of the row
    row_max = -float("inf")
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < n_cols, other=-float("inf"))
        row_max = tl.maximum(row_max, tl.max(x, axis=0))
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < n_cols, other=-float("inf"))
        total += tl.sum(tl.exp(x - row_max), axis=0)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < n_cols, other=0.0)
        tl.store(y_ptr + row * y_stride + cols, tl.exp(x - row_max) / total, mask=cols < n_cols)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(m,)](x, y, n, x.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=NUM_WARPS)
    return y
"""
)

LAYERNORM = (
    HEAD
    + """BLOCK = 64
NUM_WARPS = 4


@triton.jit
def layernorm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
        total += x
    mean = tl.sum(total, axis=0) / n_cols
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
        centred = tl.where(mask, x - mean, 0.0)
        squares += centred * centred
    variance = tl.sum(squares, axis=0) / n_cols
    scale = 1.0 / tl.sqrt(variance + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean) * scale * weight + bias
        tl.store(y_ptr + row * y_stride + cols, y, mask=mask)


def run(x, weight, bias):
    m, n = x.shape
    y = torch.empty_like(x)
    layernorm_kernel[(m,)](
        x, weight, bias, y, n, x.stride(0), y.stride(0), 1e-5, BLOCK=BLOCK, num_warps=NUM_WARPS
    )
    return y
"""
)

CROSS_ENTROPY = (
    HEAD
    + """BLOCK = 64
NUM_WARPS = 4


@triton.jit
def cross_entropy_kernel(logits_ptr, target_ptr, loss_ptr, n_cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row * stride
    largest = -float("inf")
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        largest = tl.maximum(largest, tl.max(x, axis=0))
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - largest), axis=0)
    target = tl.load(target_ptr + row)
    picked = tl.load(row_ptr + target).to(tl.float32)
    tl.store(loss_ptr + row, largest + tl.log(total) - picked)


def run(logits, target):
    m, n = logits.shape
    loss = torch.empty(m, device=logits.device, dtype=torch.float32)
    cross_entropy_kernel[(m,)](logits, target, loss, n, logits.stride(0), BLOCK=BLOCK, num_warps=NUM_WARPS)
    return loss
"""
)

ATTENTION = (
    HEAD
    + """BLOCK_M = 16
BLOCK_N = 16
NUM_WARPS = 4


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, length, scale, stride_head, stride_row,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1)
    dims = tl.arange(0, HEAD_DIM)
    base = head * stride_head
    q = tl.load(q_ptr + base + rows[:, None] * stride_row + dims[None, :], mask=rows[:, None] < length, other=0.0)
    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    for start in range(0, length, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + base + cols[None, :] * stride_row + dims[:, None], mask=cols[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * scale
        visible = (cols[None, :] <= rows[:, None]) & (cols[None, :] < length)
        scores = tl.where(visible, scores, -float("inf"))
        largest = tl.maximum(largest, tl.max(scores, axis=1))
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, length, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + base + cols[None, :] * stride_row + dims[:, None], mask=cols[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * scale
        visible = (cols[None, :] <= rows[:, None]) & (cols[None, :] < length)
        scores = tl.where(visible, scores, -float("inf"))
        total += tl.sum(tl.exp(scores - largest[:, None]), axis=1)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, length, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + base + cols[None, :] * stride_row + dims[:, None], mask=cols[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * scale
        visible = (cols[None, :] <= rows[:, None]) & (cols[None, :] < length)
        scores = tl.where(visible, scores, -float("inf"))
        p = tl.exp(scores - largest[:, None]) / total[:, None]
        v = tl.load(v_ptr + base + cols[:, None] * stride_row + dims[None, :], mask=cols[:, None] < length, other=0.0)
        acc += tl.dot(p.to(v.dtype), v)
    tl.store(o_ptr + base + rows[:, None] * stride_row + dims[None, :], acc, mask=rows[:, None] < length)


def run(q, k, v):
    heads, length, dim = q.shape
    o = torch.empty_like(q)
    attention_kernel[(triton.cdiv(length, BLOCK_M), heads)](
        q, k, v, o, length, 1.0 / dim**0.5, q.stride(0), q.stride(1),
        HEAD_DIM=dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )
    return o
"""
)

CHAIN = (
    HEAD
    + """MUL_BLOCK = 128
RELU_BLOCK = 128
SUM_BLOCK = 64


@triton.jit
def mul_kernel(a_ptr, b_ptr, out_ptr, n, n_cols, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(a_ptr + offsets, mask=mask)
    b = tl.load(b_ptr + offsets % n_cols, mask=mask)
    tl.store(out_ptr + offsets, a * b, mask=mask)


@triton.jit
def relu_kernel(a_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(a_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(a, 0.0) + 1.0, mask=mask)


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        total += tl.sum(x, axis=0)
    tl.store(y_ptr + row, total)


@triton.jit
def double_kernel(a_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(a_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, a * 2.0, mask=mask)


def run(x, w):
    m, n = x.shape
    scaled = torch.empty_like(x)
    mul_kernel[(triton.cdiv(m * n, MUL_BLOCK),)](x, w, scaled, m * n, n, BLOCK=MUL_BLOCK)
    active = torch.empty_like(x)
    relu_kernel[(triton.cdiv(m * n, RELU_BLOCK),)](scaled, active, m * n, BLOCK=RELU_BLOCK)
    sums = torch.empty(m, device=x.device, dtype=x.dtype)
    sum_kernel[(m,)](active, sums, n, BLOCK=SUM_BLOCK)
    out = torch.empty_like(sums)
    double_kernel[(triton.cdiv(m, MUL_BLOCK),)](sums, out, m, BLOCK=MUL_BLOCK)
    return out
"""
)

SAMPLES = {
    "softmax": SOFTMAX,
    "layernorm": LAYERNORM,
    "cross_entropy": CROSS_ENTROPY,
    "attention": ATTENTION,
    "chain": CHAIN,
}

SHAPES = {
    "softmax": [[(3, 1)], [(5, 64)], [(4, 100)], [(2, 193)]],
    "layernorm": [[(3, n), (n,), (n,)] for n in (1, 64, 100, 193)],
    "cross_entropy": [[(3, 64), (3,)], [(5, 130), (5,)]],
    "attention": [[(2, 16, 16)] * 3, [(1, 37, 16)] * 3],
    "chain": [[(3, 64), (64,)], [(5, 100), (100,)]],
    "masked": [[(3, 64), (64,), (3, 64)], [(5, 100), (100,), (5, 100)], [(2, 1100), (1100,), (2, 1100)]],
    "after": [[(3, 64), (64,)], [(2, 1100), (1100,)]],
    "twice": [[(3, 64), (64,)], [(2, 1100), (1100,)]],
    "beside": [[(3, 64), (64,)], [(2, 1100), (1100,)]],
}


def card(name: str, dtype: str = "float32", sizes: tuple[tuple[int, ...], ...] = ()) -> TaskCard:
    """A task card whose cases have the sample's shapes (or `sizes`)."""
    cases = []
    for number, shapes in enumerate([list(sizes)] if sizes else SHAPES[name]):
        inputs = tuple((dtype, tuple(shape), _contiguous(shape)) for shape in shapes)
        cases.append(CaseCard(f"case-{number}", CaseKind.SEARCH, {}, inputs))
    return TaskCard(name, "", "kernels", "ieee", False, tuple(cases))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


_CHILD = """
import importlib.util, json, sys, torch
torch.set_num_threads(1)
from evo_kernel.fitness.ir.jit import install
install()
from tests.operators.support_rewrites import REFERENCES, SHAPES, draw
answers = []
for number, (path, name) in enumerate(json.load(open(sys.argv[1]))):
    worst, reason = 0.0, ""
    try:
        spec = importlib.util.spec_from_file_location(f"sample_{number}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for shapes in SHAPES[name]:
            inputs = draw(name, shapes)
            want = REFERENCES(name, *[t.double() if t.is_floating_point() else t for t in inputs])
            got = module.run(*[t.clone() for t in inputs])
            got = (torch.stack(got) if isinstance(got, tuple) else got).double()
            error = (got - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
            worst = max(worst, error) if error == error else float("inf")
    except Exception as error:  # whatever the kernel does is the answer
        reason = f"{type(error).__name__}: {str(error)[-600:]}"
    answers.append((worst, reason))
print("ANSWER" + json.dumps(answers))
"""


def draw(name: str, shapes):
    import torch

    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(tuple(shape), generator=generator) for shape in shapes]
    if name == "cross_entropy":
        inputs[1] = torch.randint(0, shapes[0][1], tuple(shapes[1]), generator=generator)
    if name == "layernorm":
        inputs[0] += 30.0
    if name == "masked":
        inputs[2] = inputs[2] > 0.5
        inputs[2][:, 0] = False
    return inputs


def REFERENCES(name: str, *inputs):
    import torch

    if name == "masked":
        x, b, mask = inputs
        return torch.softmax(((x + b) * 0.125).masked_fill(mask, float("-inf")), -1)
    if name == "after":
        x, w = inputs
        return torch.relu(torch.softmax(x, -1) * w) + x
    if name == "twice":
        x, w = inputs
        return torch.log_softmax(torch.softmax(x, -1) * w, -1)
    if name == "beside":
        x, w = inputs
        return torch.stack(((x * w).mean(-1), (x * w).amax(-1)))
    if name == "softmax":
        return torch.softmax(inputs[0], -1)
    if name == "layernorm":
        return torch.nn.functional.layer_norm(inputs[0], inputs[0].shape[-1:], inputs[1], inputs[2], 1e-5)
    if name == "cross_entropy":
        return torch.nn.functional.cross_entropy(*inputs, reduction="none")
    if name == "attention":
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    x, w = inputs
    return 2 * (torch.relu(x * w) + 1).sum(-1)


def errors_of(sources: list[tuple[str, str]], deadline_s: float = 120.0) -> list[tuple[float, str]]:
    """(worst error relative to the largest reference value, reason) of each (text, sample name), by running them
    all in one child process, without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for number, (text, name) in enumerate(sources):
            path = Path(folder) / f"sample_{number}.py"
            path.write_text(text)
            jobs.append((str(path), name))
        listing = Path(folder) / "jobs.json"
        listing.write_text(json.dumps(jobs))
        done = subprocess.run(
            script("-c", _CHILD, listing),
            capture_output=True,
            text=True,
            timeout=deadline_s,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
        if not lines:
            raise AssertionError(f"the child gave no answer: {done.stderr[-2000:]}")
        return [(worst, reason) for worst, reason in json.loads(lines[-1].removeprefix("ANSWER"))]
