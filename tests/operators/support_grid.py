"""What the tests of grid rewrites share: seeds, task cards, and child processes that run or compile many sources."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from evo_kernel.tasks.builtin import text_of
from evo_kernel.types import CaseCard, CaseKind, TaskCard
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).resolve().parent / "grid_child.py"
FP32_ERROR = 2e-5  # of sums of up to 129 products of bf16 values, relative to the largest value
TF32_ERROR = 1e-3  # of attention, whose second product rounds probabilities to TF32

PRODUCT = '''"""Matrix product with advancing pointers on a one-dimensional grid, in fp32."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 16
BLOCK_K = 16


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid = tl.program_id(0)
    width = tl.cdiv(n, BLOCK_N)
    # which tile this is
    pid_m = pid // width
    pid_n = pid % width
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * k + inner[None, :]
    b_ptrs = b_ptr + inner[:, None] * n + cols[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        left = k - start
        a = tl.load(a_ptrs, mask=(rows[:, None] < m) & (inner[None, :] < left), other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=(inner[:, None] < left) & (cols[None, :] < n), other=0.0).to(tl.float32)
        acc += tl.dot(a, b, input_precision="ieee")
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * n
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    product_kernel[(triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)](
        a, b, c, m, n, k, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K
    )
    return c
'''


def seed(name: str) -> str:
    return text_of(name, "seed.py")


def card(dtype: str = "bfloat16", inputs: int = 2, precision: str = "ieee") -> TaskCard:
    tensors = tuple((dtype, (4096, 4096), (4096, 1)) for _ in range(inputs))
    return TaskCard("sample", "", "kernels", precision, False, (CaseCard("large", CaseKind.SEARCH, {}, tensors),))


def applied(text: str, *rewrites: Rewrite, task: TaskCard | None = None) -> str:
    """The text after each rewrite at its first place."""
    for rewrite in rewrites:
        module = KernelModule.parse(text)
        offers = rewrite.offers(module, task or card())
        assert offers, f"{rewrite.name} is not offered on\n{text}"
        text = rewrite.apply(module, offers[0])
    return text


def answers(how: str, sources: list[tuple[str, str]], deadline_s: float = 120.0) -> list:
    """[value, reason] of each (source, task name): see grid_child."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for number, (text, name) in enumerate(sources):
            path = Path(folder) / f"source_{number}.py"
            path.write_text(text)
            jobs.append((str(path), name))
        listing = Path(folder) / "jobs.json"
        listing.write_text(json.dumps(jobs))
        settings = {"TRITON_CACHE_DIR": f"{folder}/cache"}
        done = subprocess.run(
            script(CHILD, how, listing),
            capture_output=True,
            text=True,
            timeout=deadline_s,
            env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
        assert lines, f"the child gave no answer: {done.stderr[-2000:]}"
        return json.loads(lines[-1].removeprefix("ANSWER"))
