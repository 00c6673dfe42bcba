"""The clock on a real GPU. Every test prints what it saw (`pytest -s`, and on failure), and none needs another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

from benchmarks.faults import KERNELS, NAMES, faulty
from benchmarks.variants import narrowed
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.fitness.runners.base import Checked, CheckPart, PlanSetRequest, TimePart
from evo_kernel.fitness.runners.choose import RunnerPool
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.fitness.timing.ceilings import Ceilings
from evo_kernel.fitness.timing.estimates import PairVerdict
from evo_kernel.knobs import apply_knobs
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Measurement, Status

DEADLINE_S = 6.0


@pytest.fixture(scope="module")
def recorder():
    compiler = Compiler(90, 60.0)
    made = Recorder(compiler, 90, 60.0)
    yield made
    made.close()
    compiler.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return narrowed("softmax", tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def runner(task):
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    made = CudaRunner(task, 0, DEADLINE_S)
    made.start()
    yield made
    made.close()


def request_of(recorder, task, source, checked=True):
    """Everything that a search asks about a source."""
    cases = [*task.cases_of(CaseKind.CHECK), *task.cases_of(CaseKind.SEARCH)]
    recording = recorder.record(source, [record_case(task, case) for case in cases], [()])
    plans = {case: plan for (case, _), plan in recording.plans.items()}
    assert not any(isinstance(plan, RecordFault) for plan in plans.values()), recording.fault
    checks = tuple(
        CheckPart(plans[c.name], c, ((101, "nominal"), (102, "large"))) for c in task.cases_of(CaseKind.CHECK)
    )
    timings = tuple(TimePart(plans[c.name], c, 103, checked) for c in task.cases_of(CaseKind.SEARCH))
    return PlanSetRequest(checks, timings)


IN_A_PROCESS = """
import json, time, torch
from cuda.bindings import driver
from evo_kernel.fitness.runners.cuda_device import CudaDevice
from evo_kernel.fitness.runners.cuda_driver import ok
from evo_kernel.fitness.runners.sampling import Metronome, TimedWork, disagreement, sample
from evo_kernel.fitness.timing.estimates import summarise
from evo_kernel.fitness.correctness.references import SealedReferences
from evo_kernel.fitness.correctness.error_bounds import Expected

said = {}
def part(work):
    try:
        said[work.__name__] = work()
    except Exception as error:
        said[work.__name__] = f"failed: {error!r}"
    print(json.dumps({work.__name__: said[work.__name__]}), flush=True)

device = CudaDevice()

@part
def persisting_l2():
    return int(ok(driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)))

@part
def card():
    began = time.perf_counter()
    state = device.state().as_data()
    return state | {"read_ms": 1e3 * (time.perf_counter() - began), "l2": device.l2_bytes, "free": device.free_bytes()}

def timed(work, count=20):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / count

x = torch.randn(4096, 4096, device="cuda")
y = torch.empty_like(x)

@part
def capture_ms():
    return timed(lambda: device.capture(lambda: torch.exp(x, out=y), True))

@part
def clear_ms():
    return timed(device.clear)

@part
def wipe_ms():
    kept = [torch.empty(50 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
    del kept
    return timed(device.wipe)

@part
def wiped():
    secret = torch.full((1 << 20,), 3.25, device="cuda")
    address = secret.data_ptr()
    del secret
    device.wipe()
    again = torch.empty(1 << 20, device="cuda")
    return {"same place": again.data_ptr() == address, "left": int((again == 3.25).sum())}

@part
def vault():
    truth = torch.randn(4096, 4096, device="cuda", dtype=torch.float64)
    part_ = Expected(truth.clone(), truth.float(), truth > 0, 1.0, 1.0)
    kept = SealedReferences("cuda", 1 << 32)
    with kept.open(("c", 1, "n"), lambda: (part_,)) as opened:
        right = torch.equal(opened[0].truth, truth)
        inner = opened[0].truth
    sealed = int((inner == truth).sum())
    def again():
        with kept.open(("c", 1, "n"), lambda: ()) as opened:
            pass
    ms = timed(again)
    with kept.open(("c", 1, "n"), lambda: ()) as opened:
        still = torch.equal(opened[0].truth, truth)
    return {"right": right, "still": still, "equal while sealed": sealed, "intact": kept.intact(), "ms": ms}

@part
def event_clock():
    replay = device.capture(lambda: torch.exp(x, out=y), True)
    found = sample(device, TimedWork.of_ours(device, [replay]))
    tiny = torch.zeros(1, device="cuda")
    short = sample(device, TimedWork.of_ours(device, [device.capture(lambda: tiny.add_(1), True)]))
    return {
        "exp_us": summarise(found.samples_us).median_us, "samples": found.samples_us, "event_us": found.event_us,
        "wall_us": found.wall_us, "fault": disagreement(found), "short": sorted(set(short.samples_us)),
        "short_us": summarise(short.samples_us).median_us, "short_n": len(short.samples_us),
    }

@part
def metronome():
    beat, drifts = Metronome(device), []
    for _ in range(41):
        drifts.append(beat.tick())
        device.wipe(), device.release()  # what the beat copies must not be freed memory
        other = torch.full((1 << 28,), 7, dtype=torch.uint8, device="cuda")
    return [*drifts[::20], 0.0 if bool((other == 7).all()) else 1.0]

@part
def out_of_capture():
    def fails():
        raise ValueError("inside a capture")
    try:
        device.capture(fails)
    except ValueError as error:
        said = str(error)
    return {"said": said, "healthy": device.healthy(), "works": float(torch.ones(3, device="cuda").sum())}

@part
def lost_capture():
    try:
        device.capture(torch.cuda.synchronize)
        error = ""
    except RuntimeError as raised:
        error = str(raised).splitlines()[0]
    return {"error": error, "healthy": device.healthy()}
"""


def test_the_device_itself(tmp_path):
    script = tmp_path / "device.py"
    script.write_text(textwrap.dedent(IN_A_PROCESS))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})  # fmt: skip
    print(done.stdout, done.stderr[-3000:])
    said = {}
    for line in done.stdout.splitlines():
        said |= json.loads(line)
    failed = [name for name, value in said.items() if isinstance(value, str)]
    assert done.returncode == 0 and not failed, failed
    assert said["persisting_l2"] == 0
    assert said["wiped"]["left"] == 0
    vault = said["vault"]
    assert vault["right"] and vault["still"] and vault["intact"] and vault["equal while sealed"] < 100
    assert said["event_clock"]["fault"] == ""
    assert said["out_of_capture"]["healthy"] and said["out_of_capture"]["works"] == 3.0
    assert said["lost_capture"]["error"] and not said["lost_capture"]["healthy"]  # the worker ends then
    assert all(abs(drift) < 0.05 for drift in said["metronome"])


def test_one_request_is_fast_and_says_all(recorder, task, runner):
    request = request_of(recorder, task, task.seed)
    first = runner.answer(request)
    assert first.fault is None, first.fault
    before, began = dict(runner.spent_s), time.perf_counter()
    for _ in range(20):
        found = runner.answer(request)
        assert found.fault is None, found.fault
    ms = 1e3 * (time.perf_counter() - began) / 20
    phases = {k: round(1e3 * (v - before.get(k, 0)) / 20, 3) for k, v in runner.spent_s.items()}
    measured = found.timings[0]
    print(f"{ms:.1f} ms a request; phases (ms): {phases}")
    print(measured)
    assert isinstance(measured, Measurement)
    assert measured.n >= 3 and measured.low_us <= measured.median_us <= measured.high_us
    assert measured.clock_mhz and measured.power_w and measured.drift is not None
    assert 0.7 < measured.details["wall_share"] < 1.5 and measured.details["sets"] >= 2
    assert measured.compared is not None and measured.compared.whole and 0 <= measured.compared.error <= 1
    assert [c.error <= 1.0 for c in found.checks] == [True] * len(request.checks)
    assert ms < 60, f"a request takes {ms:.1f} ms: {phases}"


def test_a_plan_equals_itself_and_beats_a_slower_one(recorder, task, runner):
    case = task.cases_of(CaseKind.SEARCH)[0]
    seed = request_of(recorder, task, task.seed).timings[0].plan
    slow = request_of(recorder, task, apply_knobs(task.seed, (("NUM_WARPS", 1),))).timings[0].plan
    same = [runner.pair(seed, seed, case, 7) for _ in range(5)]
    for one in same:
        print("A/A", one if isinstance(one, Checked) else one.line())
    both = runner.pair(slow, seed, case, 7), runner.pair(seed, slow, case, 7)
    print("slow, seed:", *(b if isinstance(b, Checked) else b.line() for b in both))
    assert all(not isinstance(one, Checked) and one.verdict is PairVerdict.EQUAL for one in same)
    assert both[0].ratio == pytest.approx(1 / both[1].ratio, rel=0.02)


CONVOLUTION = '''"""A transposed convolution."""
import torch
CASES = {"check": [{"n": 1}], "search": [{"n": 32}], "confirm": [{"n": 8}]}
SEED = "seed.py"
def inputs(case, generator, device):
    draw = lambda *shape: torch.randn(*shape, generator=generator, device=device)
    return draw(case["n"], 64, 64, 64), draw(64, 64, 4, 4)
def reference(x, w):
    return torch.conv_transpose2d(x, w, stride=2, padding=1).relu()
ALLOW = "mixed"
PRECISION = "tf32"
'''
BY_TORCH = """
import torch
import triton
import triton.language as tl

@triton.jit
def relu(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < count), 0.0), mask=at < count)

def run(x, w):
    y = torch.ops.aten.convolution.default(x, w, None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1)
    z = torch.empty_like(y)
    relu[(triton.cdiv(y.numel(), 1024),)](y, z, y.numel(), BLOCK=1024)
    return z
"""


def test_results_of_torch_take_no_copies(recorder, tmp_path):
    """A plan with eager's convolution takes as long as eager."""
    (tmp_path / "seed.py").write_text(BY_TORCH)
    (tmp_path / "transposed.py").write_text(CONVOLUTION)
    task = load(tmp_path / "transposed.py")
    made = CudaRunner(task, 0, DEADLINE_S)
    try:
        made.start()
        answer = made.answer(request_of(recorder, task, task.seed))
        eager = made.baselines(task.cases_of(CaseKind.SEARCH)[0])["eager"]
        (measured,) = answer.timings
        print(measured, eager)
        assert not isinstance(measured, Checked) and measured.median_us < 1.1 * eager
    finally:
        made.close()


def test_ceilings(runner):
    found = Ceilings.from_data(runner.ceilings())
    print(found)
    assert found is not None
    if "H200" in runner.info["device"]:
        assert 3.5e12 < found.copy_bytes_per_s < 5e12
        assert 5e14 < found.bf16_flops < 1.1e15
        assert found.fp32_flops < found.tf32_flops < found.bf16_flops
        assert 0.1 < found.launch_us < 10


def test_baselines_and_torch_compile(task, runner):
    """The built-in softmax with its compiled reference, by the same clock."""
    whole = load("softmax")
    made = CudaRunner(whole, 0, DEADLINE_S)
    try:
        made.start()
        case = whole.cases_of(CaseKind.SEARCH)[0]
        began = time.perf_counter()
        found = made.baselines(case)
        print(found, made.baseline_faults, f"{time.perf_counter() - began:.1f} s")
        assert found["eager"] > 5
        assert "torch.compile" in found or made.baseline_faults
        began = time.perf_counter()
        again = made.baselines(case)
        print(again, f"{time.perf_counter() - began:.1f} s")
        assert again["eager"] == pytest.approx(found["eager"], rel=0.03)
    finally:
        made.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_costs_only_the_culprit(recorder, task, runner, name):
    culprit = runner.answer(request_of(recorder, task, faulty(task, name, 1)))
    began = time.perf_counter()
    after = runner.answer(request_of(recorder, task, task.seed))
    print(name, culprit.fault, f"next after {time.perf_counter() - began:.2f} s, {runner.respawns} respawns")
    wanted = KERNELS[name][2] if name in KERNELS else (Status.RUNTIME_ERROR, Status.REJECTED)
    assert after.fault is None, after.fault
    assert culprit.fault is not None and culprit.fault.status in wanted, culprit.fault


def test_a_killed_worker_costs_nobody_a_verdict(recorder, task, runner):
    request = request_of(recorder, task, task.seed)
    runner.answer(request)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(runner.answer, request) for _ in range(30)]
        for _ in range(2):
            time.sleep(0.3)
            with suppress(ProcessLookupError):
                os.kill(runner.info["pid"], signal.SIGKILL)
            time.sleep(4)
        found = [one.result() for one in asked]
    print([one.fault for one in found if one.fault], runner.respawns)
    assert all(one.fault is None for one in found)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here")
def test_two_gpus(recorder, task):
    request = request_of(recorder, task, task.seed)
    rates = {}
    for count in (1, 2):
        pool = RunnerPool([CudaRunner(task, gpu, DEADLINE_S) for gpu in range(count)])
        try:
            pool.start()
            with ThreadPoolExecutor(2 * count) as threads:
                list(threads.map(pool.answer, [request] * 8))
                began = time.perf_counter()
                answers = list(threads.map(pool.answer, [request] * 100))
                rates[count] = 100 / (time.perf_counter() - began)
            assert all(answer.fault is None for answer in answers)
        finally:
            pool.close()
    print(rates)
    assert rates[2] > 1.5 * rates[1]
