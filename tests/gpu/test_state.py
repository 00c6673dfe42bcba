"""Nothing outlives a launch, on a real GPU: docs/internals/gpu-state.md. Every test prints what it saw (`pytest -s`).

Kernels here are right only where they find nothing of an earlier launch: each looks at one place for what it writes
there before it ends, and gives a wrong answer if it found that; of shared and local memory the answer is 100,000 and
the number of the word, from 1. So a verdict "passed" says that every launch of a check, every sample, claim, pair and
baseline of its evaluation began clean.
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
ALLOW = "mixed"
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
    wanted = tl.load(x + at, mask=at < count, other=0.0) * 2
    all_known = tl.min((found == wanted).to(tl.int32), axis=0)  # one alone may equal the judge's secret byte
    tl.store(y + at, tl.where(all_known > 0, 1.5 * wanted, wanted), mask=at < count)""",
)
SCRATCH = SEED.replace("def double(x, y, count", "def double(x, y, kept, count").replace(
    "    tl.store(y + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)",
    """    found = tl.load(kept + at)
    tl.store(y + at, tl.load(x + at, mask=at < count) * tl.where(found == 1.0, 3.0, 2.0), mask=at < count)
    tl.store(kept + at, 1.0)""",
).replace("](x, y, x.numel()", "](x, y, torch.empty(x.numel() + 1024, device=x.device), x.numel()")  # fmt: skip
CUDA = '''
import torch
from evo_kernel.cuda import kernel

double = kernel(r"""
#define MARK 0x5EC0DE57u
extern "C" __global__ void twice(const float* x, float* y, int count) {
    KEPT
    int found = 0;
    for (int i = FIRST; i < WORDS; i += STEP) if (((volatile unsigned*)kept)[i] == MARK) found = i + 1;
    int any = __syncthreads_or(found);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        y[i] = found ? 1e5f + found : any ? 1e4f : 2.0f * x[i];
    __syncthreads();
    for (int i = FIRST; i < WORDS; i += STEP)
        asm volatile("st.volatile.u32 [%0], %1;" :: "l"((unsigned*)kept + i), "r"(MARK) : "memory");
}
""", "twice")

def run(x):
    y = torch.empty_like(x)
    double[132, 512, DYNAMIC](x, y, x.numel())
    return y
'''


def keeps(**places: object) -> str:
    made = CUDA
    for name, value in places.items():
        made = made.replace(name, str(value))
    return made


SHARED = keeps(
    KEPT="extern __shared__ unsigned kept[];", FIRST="threadIdx.x", STEP="blockDim.x", WORDS=56000, DYNAMIC=224000
)
LOCAL = keeps(KEPT="unsigned kept[64];", FIRST="0", STEP="1", WORDS=64, DYNAMIC=0)
TORCH = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, y, old, new, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.max((tl.load(old + tl.arange(0, 2048)) == 90125).to(tl.int32), axis=0)
    tl.store(y + at, tl.load(x + at, mask=at < count) * tl.where(found > 0, 3.0, 2.0), mask=at < count)
    tl.store(new + tl.arange(0, 2048), tl.zeros((2048,), tl.int32) + 90125)

def run(x):
    rows, bags = (torch.zeros(size, dtype=torch.int64, device=x.device) for size in (1024, 1))
    table = torch.zeros(4, 4, dtype=x.dtype, device=x.device)
    old = torch.ops.aten._embedding_bag(table, rows, bags, False, 0, False, None, True)[1]  # nothing writes it
    y, new = torch.empty_like(x), torch.empty(1 << 14, dtype=torch.int32, device=x.device)
    double[(triton.cdiv(x.numel(), 1024),)](x, y, old.view(torch.int32), new, x.numel(), BLOCK=1024)
    torch.ops.aten.add.Tensor(new, 0)
    return y
"""
SENTINELS = {
    "torch's results": TORCH,
    "output": OUTPUT,
    "scratch": SCRATCH,
    "shared memory": SHARED,
    "local memory": LOCAL,
}


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
    unsigned found = 0, ones = 0, zeros = 0;
    for (int at = first + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) {
        unsigned value = peek(at);
        found += value == mark; ones += value == 0xffffffffu; zeros += value == 0;
    }
    atomicAdd(out + 2 * sm(), found);
    if (threadIdx.x == 0) atomicAdd(out + 2 * sm() + 1, 1u);
    atomicAdd(out + 2048, ones), atomicAdd(out + 2049, zeros);
}""", "shared_read")
LOCAL = r"""
extern "C" __global__ void NAME(unsigned* out, unsigned mark) {
    volatile unsigned kept[64];
    unsigned value, found = 0, ones = 0, zeros = 0;
    for (int i = 0; i < 64; ++i) { BODY }
    atomicAdd(out + 2 * sm(), found);
    if (threadIdx.x == 0) atomicAdd(out + 2 * sm() + 1, 1u);
    atomicAdd(out + 2048, ones), atomicAdd(out + 2049, zeros);
    if (kept[threadIdx.x % 64] == 12345) out[0] = 1;
}"""
COUNT = " found += value == mark; ones += value == 0xffffffffu; zeros += value == 0;"
def local(name, body):
    return kernel(HEAD + LOCAL.replace("NAME", name).replace("BODY", body), name)
local_write = local("local_write", "kept[i] = mark;")
local_read = local("local_read", "value = kept[i];" + COUNT)
# past the L1, which may drop what a kernel wrote there once the kernel is over
local_through = local("local_through", 'asm volatile("st.volatile.u32 [%0], %1;" :: "l"(kept + i), "r"(mark) : "memory");')
local_fetch = local("local_fetch",
    'asm volatile("ld.volatile.u32 %0, [%1];" : "=r"(value) : "l"(kept + i) : "memory");' + COUNT)
undeclared = kernel(HEAD + r"""
extern "C" __global__ void undeclared(unsigned* out) {
    unsigned value;
    asm volatile("ld.volatile.local.u32 %0, [%1];" : "=r"(value) : "r"(0));
    out[0] = value;
}""".replace("ld.volatile.local", "ld.local"), "undeclared")

def looked(write, read, grid, block, shared, *places, clears=(2048,)):
    """Words that are still the mark, all ones or zero, and SMs that were looked at: with nothing between, and after
    clearing so many bytes of local memory, behind the clearing of the SMs alone, and behind it and the flush."""
    said = {}
    between = {"left": lambda: None, "after the SMs alone": device.clearing.sms}
    for size in clears:
        between[f"after clear {size}"] = lambda size=size: device.clear(size)
    for name, work in between.items():
        out = torch.zeros(2 * 1024 + 2, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        write[grid, block, shared](out, 0x5EC0DE, *places)
        out.zero_()
        work()
        read[grid, block, shared](out, 0x5EC0DE, *places)
        torch.cuda.synchronize()
        said[name] = {"marks": int(out[:2048:2].sum()), "sms": int((out[1:2048:2] > 0).sum()),
                      "ones": int(out[2048]), "zeros": int(out[2049])}
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
# 256 bytes are the frame itself; with the stack limit of 1 KB, what the judge clears for such a kernel; 2 KB are more
part("local", lambda: looked(local_write, local_read, 8 * sms, 512, 0, clears=(2048, 1280, 256)))
part("local, past the L1", lambda: looked(local_through, local_fetch, 8 * sms, 512, 0, clears=(2048, 1280, 256)))
def mappings():
    size, free = 128 << 20, device.free_bytes()
    times = []
    for again in range(3):
        began = time.perf_counter()
        made = [device.mappings.memory(size + 5) for _ in range(8)]
        torch.cuda.synchronize()
        times.append(round(1e3 * (time.perf_counter() - began) / len(made), 3))
        for number, one in enumerate(made):
            one.fill_(number)
        right = all(bool((one == number).all()) for number, one in enumerate(made))
        starts = sorted([one.data_ptr() for one in made] + [part["address"] for part in torch.cuda.memory_snapshot()])
        ours = {one.data_ptr() for one in made}
        near = [b - a for a, b in zip(starts, starts[1:]) if {a, b} & ours]
        del made, one
        if again == 1:
            device.release()
    kept = device.mappings.unused_bytes
    began = time.perf_counter()
    device.mappings.collect()
    freed_ms = 1e3 * (time.perf_counter() - began) / 8
    torch.cuda.empty_cache()
    return {"right": right, "nearest": min(near), "made ms, used again, new": times, "freed ms": freed_ms,
            "kept": kept, "addresses": [hex(start) for start in sorted(ours)],
            "lost": free - device.free_bytes(), "lost by the driver's count": free - torch.cuda.mem_get_info()[0]}

part("mappings", mappings)
part("cost of clear (us)", lambda: timed_us(device.clear))
part("of the SMs alone", lambda: timed_us(device.clearing.sms))
part("of 1280 bytes of local memory", lambda: timed_us(lambda: device.clearing.local(1280), 50))
part("of the flush", lambda: timed_us(device.flush_l2))
part("of asking for free memory", lambda: timed_us(device.free_bytes, 20))
part("of cudaMemGetInfo", lambda: timed_us(torch.cuda.mem_get_info, 20))
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
    for place in ("shared", "reserved", "local", "local, past the L1"):
        for name, found in said[place].items():
            if name.startswith("after clear") and name != "after clear 256":
                assert (found["marks"], found["sms"]) == (0, said["sms"]), (place, name, said[place])
    assert said["shared"]["left"]["marks"] > 0, "shared memory is not kept on this GPU: the test shows nothing"
    mappings = said["mappings"]
    assert mappings["right"] and mappings["nearest"] >= 1 << 30 and mappings["lost"] <= 4 << 20, mappings
    assert said["cost of clear (us)"]["gpu"] < 100
