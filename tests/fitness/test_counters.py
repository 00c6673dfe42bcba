"""Hardware counters: what is asked of ncu, what its table says, and that nothing it does can hurt. With a fake ncu."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch

from evo_kernel.fitness.costmodel.targets import H200
from evo_kernel.fitness.plan.launch_plan import Fill
from evo_kernel.fitness.profiling.counters import METRICS, CountPart, HardwareCounters, read_csv, unknown_metrics
from evo_kernel.fitness.profiling.profiler import Profiler, bound
from evo_kernel.fitness.runners import ncu
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.fitness.runners.ncu import replay
from evo_kernel.fitness.timing.ceilings import Ceilings
from tests.fitness.fake_gpu import FakeDevice, plan, task_in, worker_command

SAMPLE = """==PROF== Connected to process 77 (/usr/bin/python3.12)
/venv/torch/cuda.py:1: UserWarning: "a quoted, thing"
==PROF== Profiling "matmul_kernel" - 0: 0%....50%....100% - 12 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","77","python3.12","127.0.0.1","matmul_kernel(float *, ""x"")","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Gbyte","1.5"
"0","77","python3.12","127.0.0.1","matmul_kernel(float *, ""x"")","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","us","204.80"
"0","77","python3.12","127.0.0.1","matmul_kernel(float *, ""x"")","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","lts__t_sector_hit_rate.pct","%","n/a"
"10","77","python3.12","127.0.0.1","other","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","","1,048,576"
"2","77","python3.12","127.0.0.1","third","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","61.5"
"3","77","cut off
"""


def test_the_table_is_read_with_its_units():
    first, second, third = read_csv(SAMPLE)
    assert first.name == 'matmul_kernel(float *, "x")'
    assert first.values == pytest.approx({"dram__bytes_read.sum": 1.5e9, "gpu__time_duration.sum": 204.8e-6})
    assert (second.name, third.name) == ("third", "other")  # by ID, as numbers
    assert third.values == {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 1048576.0}
    assert second.values == {"sm__throughput.avg.pct_of_peak_sustained_elapsed": 61.5}
    assert read_csv("") == read_csv("==ERROR== no\n") == []


def test_metrics_that_ncu_does_not_know_are_found_in_what_it_says():
    said = f"{METRICS[1]} in a line of the program\n==ERROR== Failed to find metric {METRICS[3]}\n"
    assert unknown_metrics(said, METRICS) == {METRICS[3]}
    assert unknown_metrics(f'==WARNING== metric "{METRICS[5].split(".")[0]}" is not there.', METRICS) == {METRICS[5]}
    assert not unknown_metrics("==ERROR== Unknown error on device 0.", METRICS)
    assert len(set(METRICS)) == len(METRICS) and all(re.fullmatch(r"[a-z0-9_]+__[a-z0-9_.]+", one) for one in METRICS)


@pytest.fixture
def counted(tmp_path):
    """Two cases, of two launches and of one, counted by an ncu of a kind."""
    task = task_in(tmp_path)
    twice, once = plan("honest", 64, 128), plan("honest", 8, 8)
    twice = twice.model_copy(update={"plan": twice.plan.model_copy(update={"nodes": twice.plan.nodes * 2})})
    parts = [CountPart(twice, task.case("m64-n128"), 5), CountPart(once, task.case("m8-n8"), 6)]
    log = tmp_path / "log"

    def count(kind="", deadline_s=30.0, program=None):
        env = {**os.environ, "FAKE_NCU": kind, "FAKE_NCU_LOG": str(log)}
        return ncu.count(task, parts, env, deadline_s, str(program or Path(__file__).with_name("fake_ncu.py")))

    count.log = lambda: [json.loads(line) for line in log.read_text().splitlines()]
    return count


def test_counters_belong_to_their_launches(counted):
    found = counted()
    assert not found.why and len(found.parts) == 2
    read = [found.of(*place)["dram__bytes_read.sum"] for place in ((0, 0), (0, 1), (1, 0))]
    # launches 0 1 0 1 0 1 of the first part and 6, 7, 8 of the second: the median round is the middle one
    assert read == pytest.approx([87.11e6, 97.11e6, 137.11e6])
    assert found.of(0, 2) == found.of(2, 0) == {}
    ((_, *options),) = counted.log()
    for option, value in (("--clock-control", "none"), ("--profile-from-start", "off"), ("--cache-control", "all"),
                          ("--target-processes", "application-only"), ("--print-units", "base")):  # fmt: skip
        assert options[options.index(option) + 1] == value
    replay = options[options.index(sys.executable) :]
    assert replay[1:4] == ["-P", "-m", "evo_kernel.fitness.runners.ncu"] and replay[-1].endswith("request.json")
    assert not Path(replay[-1]).exists(), "its folder goes with it"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("forbidden", "may not read the GPU's performance counters (ERR_NVGPUCTRPERM)"),
        ("library", "LibraryNotLoaded"),
        ("crashes", "error code (1).; RuntimeError: CUDA error: out of memory"),
        ("silent", "ended with code 3 after: nothing"),
        ("short", "8 of 9 launches were counted"),
    ],
)
def test_why_there_are_none_is_one_sentence(counted, kind, said):
    found = counted(kind)
    assert not found.parts and said in found.why and "\n" not in found.why
    assert found.why.startswith("no Nsight Compute counters: ") and found.of(0, 0) == {}


def test_there_may_be_no_ncu_at_all(counted, tmp_path, monkeypatch):
    assert "does not start" in counted(program=tmp_path / "none").why
    monkeypatch.setenv("PATH", str(tmp_path))
    usual = (str(tmp_path / "*" / "ncu"),)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert ncu.find_ncu(usual) is None
    for version in ("2024.1", "2025.3"):
        place = tmp_path / version / "ncu"
        place.parent.mkdir()
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    assert ncu.find_ncu(usual) == str(tmp_path / "2025.3" / "ncu")


def test_strange_metrics_are_left_out(counted):
    found = counted("strange")
    assert not found.why
    values = found.of(0, 0)
    assert "dram__throughput.avg.pct_of_peak_sustained_elapsed" in values
    assert "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed" not in values
    first, query, second = counted.log()
    assert query[1:] == ["--query-metrics"] and len(second[second.index("--metrics") + 1]) < len(
        first[first.index("--metrics") + 1]
    )


@pytest.mark.parametrize("kind", ["hangs", "orphan"])
def test_a_late_ncu_is_killed_with_its_children(counted, kind):
    began = time.monotonic()
    found = counted(kind, deadline_s=1.5)
    why = "not done after 1.5 s" if kind == "hangs" else "ended with code 0"  # its child keeps nobody waiting
    assert why in found.why and time.monotonic() - began < 10
    pid = int(found.output.split()[1])
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            break
        time.sleep(0.1)
    else:
        os.kill(pid, 9)
        pytest.fail("its child lives on")


def test_a_flood_is_cut(counted):
    began = time.monotonic()
    found = counted("floods")
    assert "output limit exceeded" in found.why and len(found.output) <= 6000 and time.monotonic() - began < 10


def test_only_the_launches_are_watched():
    one = plan("honest_50", 8, 8)
    (launch,), (out,) = one.plan.nodes, one.plan.outputs
    nodes = (Fill(view=out, value=0.0), launch, Fill(view=out, value=0.0), launch, launch)
    one = one.model_copy(update={"plan": one.plan.model_copy(update={"nodes": nodes})})
    device = FakeDevice()
    replay(one, [torch.randn(8, 8)], 2, 2, device, device.stepped.append)
    seen = ["fill", True, "launch", False, "fill", True, "launch", False, "launch"]
    assert device.stepped == ["fill", "launch", "fill", "launch", "launch", *seen, *seen]
    assert device.clears == 3 and device.closed == 1


@pytest.fixture
def task(tmp_path):
    return task_in(tmp_path)


@pytest.fixture
def runner(task, tmp_path, monkeypatch):
    """Around a simulated GPU, with the fake ncu on the PATH."""
    made = CudaRunner(task, 0, 8.0, worker_command(task))
    (tmp_path / "ncu").symlink_to(Path(__file__).with_name("fake_ncu.py"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    yield made
    made.close()


def test_a_profile_of_measured_launches(task, runner, monkeypatch):
    part = CountPart(plan("honest_50", 64, 128), task.case("m64-n128"), 1)
    profiler = Profiler(task, runner, Ceilings.of_target(H200), measured=True, deadline_s=30.0)
    (found,) = profiler.profile([part])["m64-n128"].kernels
    assert found.us == pytest.approx(50, rel=0.02) and found.bound_by == "memory"
    assert found.counters["sm__warps_active.avg.pct_of_peak_sustained_active"] == 92.3
    text = profiler.profile([part])["m64-n128"].as_text("measured")
    assert "bytes and tl.dot are counted by executing the IR" in text
    assert "; 92% achieved" in text and "GB/s, 71% of peak" in text
    monkeypatch.setenv("FAKE_NCU", "forbidden")
    without = profiler.profile([part])["m64-n128"]
    assert without.notes[-1].startswith("no Nsight Compute counters: this user may not")
    assert not without.kernels[0].counters and "achieved" not in without.as_text("measured")
    assert not profiler.profile([part], counters=False)["m64-n128"].notes


RAW = {
    "dram__bytes_read.sum": 67.11e6, "dram__bytes_write.sum": 58.2e6,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 71.25, "lts__t_sector_hit_rate.pct": 50.1,
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": 44.0,
    "sm__inst_issued.avg.pct_of_peak_sustained_active": 38.5,
    "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": 12.0,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 1024, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 4096,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 12.3,
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": 2.1,
    "smsp__average_warps_issue_stalled_drain_per_issue_active.ratio": 0.01,
}  # fmt: skip


def test_counters_in_words():
    assert HardwareCounters.of(RAW).lines(35.0) == [
        "  device mem.  67.1 MB read, 58.2 MB written: 3580 GB/s, 71% of peak",
        "  of peak      L2 44%, issue 38%, tensor 12%; 50% of L2 sectors hit",
        "  stalls       warps waiting an issue: long_scoreboard 12.3, wait 2.1; "
        "25% of shared-memory wavefronts are bank conflicts",
    ]
    assert HardwareCounters.of({}).lines(35.0) == []


def test_what_bounds_a_launch():
    terms = {"dram": 30.0, "l2": 20.0, "issue": 10.0, "tensor": 0.0, "latency": 12.0, "tail": 1.0, "launch": 2.0}
    by_model = bound(40.0, terms, {}, 2.0)
    assert by_model.by == "memory" and "75%" in by_model.evidence and "modeled" in by_model.evidence
    assert bound(100.0, terms, {}, 2.0).by == "latency" and "loads one after" in bound(100.0, terms, {}, 2.0).evidence
    assert bound(40.0, {**terms, "tensor": 35.0}, {}, 2.0).by == "tensor"
    slow = bound(40.0, {**terms, "latency": 36.0}, {}, 2.0)
    assert slow.by == "latency" and slow.evidence.startswith(
        "loads one after another (36.0 µs alone, 90%) and memory traffic (30.0 µs alone, 75%) and "
    )
    by_counters = bound(40.0, {**terms, "tensor": 35.0}, RAW, 2.0)
    assert (by_counters.by, by_counters.evidence) == ("memory", "device memory at 71% of peak")
    issue = {**RAW, "sm__inst_issued.avg.pct_of_peak_sustained_active": 80.0}
    assert bound(40.0, terms, issue, 2.0).by == "issue"
    idle = {**RAW, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 20.0}
    assert bound(40.0, terms, idle, 2.0).by == "latency" and "long_scoreboard" in bound(40.0, terms, idle, 2.0).evidence
    pipe = {**idle, "sm__throughput.avg.pct_of_peak_sustained_elapsed": 70.0}
    assert (
        bound(40.0, terms, pipe, 2.0).by == "issue"
        and "a pipe of the SMs at 70%" in bound(40.0, terms, pipe, 2.0).evidence
    )
    unseen = {name: value for name, value in pipe.items() if "tensor" not in name}
    assert bound(40.0, {**terms, "tensor": 35.0}, unseen, 2.0).by == "tensor"
    assert bound(3.0, terms, RAW, 2.0).by == "latency" and "empty launch" in bound(3.0, terms, RAW, 2.0).evidence
    assert bound(40.0, {}, {}, 2.0).by == "unknown"
