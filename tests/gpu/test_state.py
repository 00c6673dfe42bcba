"""Nothing outlives a launch, on a real GPU: see docs/state-on-the-gpu.md. Every test prints what it saw (`pytest -s`).

Kernels here are right only where they find nothing of an earlier launch: each looks at one place, writes poison's
opposite there before it ends, and gives a wrong answer if it found that. So a verdict "passed" says that every launch of
a check, every sample, claim, pair and baseline of its evaluation began clean.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Purpose, Source

QUICK = JudgeSettings(tune_plans=0, deadline_s=20.0)
TASK = '''"""y = 2 x."""
import torch
CASES = {"check": [{"m": 70, "n": 132}], "search": [{"m": 2048, "n": 1024}], "confirm": [{"m": 999, "n": 512}]}
SEED = "seed.py"
def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)
def reference(x):
    return x * 2
'''
SEED = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)

def run(x):
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
OUTPUT = SEED.replace(
    "    tl.store(y + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)",
    """    found = tl.load(y + at, mask=at < count, other=0.0)
    fresh = (found != found) | (at >= count)
    tl.store(y + at, tl.load(x + at, mask=at < count) * tl.where(fresh, 2.0, 3.0), mask=at < count)""",
)
SCRATCH = SEED.replace("def double(x, y, count", "def double(x, y, kept, count").replace(
    "    tl.store(y + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)",
    """    found = tl.load(kept + at)
    tl.store(y + at, tl.load(x + at, mask=at < count) * tl.where(found != found, 2.0, 3.0), mask=at < count)
    tl.store(kept + at, 1.0)""",
).replace("](x, y, x.numel()", "](x, y, torch.empty(x.numel() + 1024, device=x.device), x.numel()")  # fmt: skip
CUDA = '''
import torch
from evo_kernel.cuda import kernel

double = kernel(r"""
extern "C" __global__ void twice(const float* x, float* y, int count) {
%s
    int mine = 0;
    for (int i = threadIdx.x; i < %d; i += %s) mine += %s != 0xffffffffu;
    int found = __syncthreads_or(mine);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        y[i] = found ? 3.0f * x[i] : 2.0f * x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < %d; i += %s) %s;
}
""", "twice")

def run(x):
    y = torch.empty_like(x)
    double[132, 512, %d](x, y, x.numel())
    return y
'''
KEPT = "((volatile unsigned*)kept)[i]"
SHARED = CUDA % (
    "    extern __shared__ int kept[];", 56000, "blockDim.x", KEPT, 56000, "blockDim.x", f"{KEPT} = 7u", 224000,
)  # fmt: skip
LOCAL = CUDA % (
    "    volatile unsigned kept[64];", 64, "1", "kept[i - threadIdx.x]", 64, "1", "kept[i - threadIdx.x] = 7u", 0,
)  # fmt: skip
LOCAL = LOCAL.replace("int i = threadIdx.x; i < 64;", "int i = threadIdx.x; i < 64 + threadIdx.x;")
SENTINELS = {"output": OUTPUT, "scratch": SCRATCH, "shared memory": SHARED, "local memory": LOCAL}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    (folder / "seed.py").write_text(SEED)
    (folder / "twice.py").write_text(TASK)
    return load(folder / "twice.py")


@pytest.mark.parametrize("name", SENTINELS)
def test_every_launch_finds_nothing(task, name):
    """Checks, samples, claims and pairs in both places, and the counters' replay where ncu runs."""
    source = Source(SENTINELS[name])
    with open_judge(task, device="cuda", settings=QUICK) as judge:
        scored = judge.evaluate(source, Purpose.SCORE)
        print(name, scored.status, scored.reason, scored.score)
        assert scored.passed, scored.reason
        assert judge.evaluate(task.seed, Purpose.SCORE).passed
        confirmed = judge.evaluate(source, Purpose.CONFIRM, against=task.seed)
        print("confirmed:", confirmed.status, confirmed.reason, *confirmed.comparisons)
        assert confirmed.passed and confirmed.comparisons, confirmed.reason
        assert all(one.pairs >= 20 for one in confirmed.comparisons)
        profiled = judge.profile(source, (), [CaseKind.SEARCH], None, task.cases_of(CaseKind.SEARCH)[0].name)
        print(*(one.notes for one in profiled.values()))


IN_A_PROCESS = r'''
import json, sys, time, torch
from evo_kernel.cuda import kernel
from evo_kernel.fitness.runners.cuda_device import CudaDevice
from evo_kernel.fitness.runners.cuda_driver import device_limits

device, sms = CudaDevice(), device_limits().sm_count
BYTES = device_limits().shared_bytes

HEAD = r"""
__device__ unsigned sm() { unsigned id; asm volatile("mov.u32 %0, %smid;" : "=r"(id)); return id; }
__device__ unsigned peek(unsigned at) {
    unsigned value; asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(value) : "r"(at)); return value; }
__device__ void poke(unsigned at, unsigned value) {
    asm volatile("st.volatile.shared.u32 [%0], %1;" :: "r"(at), "r"(value)); }
"""
# Blocks with all shared memory of an SM, more than there are SMs; the reader counts words by SM that are the mark.
shared_write = kernel(HEAD + r"""
extern "C" __global__ void shared_write(unsigned* out, unsigned mark, int first, int end) {
    for (int at = first + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) poke(at, mark);
}""", "shared_write")
shared_read = kernel(HEAD + r"""
extern "C" __global__ void shared_read(unsigned* out, unsigned mark, int first, int end) {
    unsigned found = 0;
    for (int at = first + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) found += peek(at) == mark;
    atomicAdd(out + 2 * sm(), found);
    if (threadIdx.x == 0) atomicAdd(out + 2 * sm() + 1, 1u);
}""", "shared_read")
local_write = kernel(HEAD + r"""
extern "C" __global__ void local_write(unsigned* out, unsigned mark) {
    volatile unsigned kept[64];
    for (int i = 0; i < 64; ++i) kept[i] = mark;
    if (kept[threadIdx.x % 64] != mark) out[0] = 1;
}""", "local_write")
local_read = kernel(HEAD + r"""
extern "C" __global__ void local_read(unsigned* out, unsigned mark) {
    volatile unsigned kept[64];
    unsigned found = 0;
    for (int i = 0; i < 64; ++i) found += kept[i] == mark;
    atomicAdd(out + 2 * sm(), found);
    if (threadIdx.x == 0) atomicAdd(out + 2 * sm() + 1, 1u);
}""", "local_read")
undeclared = kernel(HEAD + r"""
extern "C" __global__ void undeclared(unsigned* out) {
    unsigned value;
    asm volatile("ld.volatile.local.u32 %0, [%1];" : "=r"(value) : "r"(0));
    out[0] = value;
}""".replace("ld.volatile.local", "ld.local"), "undeclared")

def looked(write, read, grid, block, shared, *places):
    """Words that are still the mark, and SMs that were looked at: with nothing between, and with `clear` between."""
    said = {}
    for name, between in (("left", lambda: None), ("after clear", lambda: device.clear(2048))):
        out = torch.zeros(2 * 1024, dtype=torch.int32, device="cuda")
        write[grid, block, shared](out, 0x5EC0DE, *places)
        between()
        out.zero_()
        read[grid, block, shared](out, 0x5EC0DE, *places)
        torch.cuda.synchronize()
        said[name] = {"marks": int(out[::2].sum()), "sms": int((out[1::2] > 0).sum())}
    return said

said = {}
def part(name, work):
    try:
        said[name] = work()
    except Exception as error:
        said[name] = f"failed: {error!r}"
    print(json.dumps({name: said[name]}), flush=True)

def timed_us(work, count=200):
    work()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began = time.perf_counter()
    start.record()
    for _ in range(count):
        work()
    end.record()
    host_us = 1e6 * (time.perf_counter() - began) / count
    torch.cuda.synchronize()
    return {"gpu": round(1e3 * start.elapsed_time(end) / count, 2), "host": round(host_us, 2)}

part("sms", lambda: sms)
part("shared", lambda: looked(shared_write, shared_read, 4 * sms, 1024, BYTES, 1024, 1024 + BYTES))
part("reserved", lambda: looked(shared_write, shared_read, 4 * sms, 256, BYTES, 0, 1024))
part("local", lambda: looked(local_write, local_read, 8 * sms, 512, 0))
def mappings():
    size, free = 128 << 20, torch.cuda.mem_get_info()[0]
    began = time.perf_counter()
    made = [device._mappings.memory(size + 5) for _ in range(8)]
    torch.cuda.synchronize()
    made_ms = 1e3 * (time.perf_counter() - began) / len(made)
    for number, one in enumerate(made):
        one.fill_(number)
    right = all(bool((one == number).all()) for number, one in enumerate(made))
    starts = sorted([one.data_ptr() for one in made] + [segment["address"] for segment in torch.cuda.memory_snapshot()])
    ours = {one.data_ptr() for one in made}
    near = [b - a for a, b in zip(starts, starts[1:]) if {a, b} & ours]
    del made, one
    began = time.perf_counter()
    device._mappings.collect()
    freed_ms = 1e3 * (time.perf_counter() - began) / 8
    return {"right": right, "nearest": min(near), "made ms": made_ms, "freed ms": freed_ms,
            "addresses": [hex(start) for start in sorted(ours)], "lost": free - torch.cuda.mem_get_info()[0]}

part("mappings", mappings)
part("cost of clear (us)", lambda: timed_us(device.clear))
part("of the SMs alone", lambda: timed_us(device._clearing.sms))
part("of 1280 bytes of local memory", lambda: timed_us(lambda: device._clearing.local(1280), 50))
part("of the flush", lambda: timed_us(device._flush.zero_))
part("of unpin", lambda: timed_us(device.unpin))
def reads_undeclared():
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    undeclared[1, 32](out)
    torch.cuda.synchronize()
    return int(out)
print("local memory that a kernel does not declare:", end=" ", flush=True)
try:
    print(reads_undeclared(), flush=True)
except Exception as error:
    print(str(error).splitlines()[0], flush=True)
'''


def test_shared_and_local_memory_of_every_sm_are_cleared(tmp_path):
    script = tmp_path / "state.py"
    script.write_text(textwrap.dedent(IN_A_PROCESS))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})  # fmt: skip
    print(done.stdout, done.stderr[-3000:])
    said = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    assert not [name for name, value in said.items() if isinstance(value, str)], done.stderr[-3000:]
    for place in ("shared", "reserved", "local"):
        found = said[place]
        assert found["after clear"] == {"marks": 0, "sms": said["sms"]}, (place, found)
    assert said["shared"]["left"]["marks"] > 0, "shared memory is not kept on this GPU: the test shows nothing"
    mappings = said["mappings"]
    assert mappings["right"] and mappings["nearest"] >= 1 << 30 and mappings["lost"] <= 4 << 20, mappings
    assert said["cost of clear (us)"]["gpu"] < 100
