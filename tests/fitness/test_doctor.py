"""What doctor finds: with an nvidia-smi of our own, a simulated GPU, and on this very machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from evo_kernel.cli.main import cli
from evo_kernel.errors import InfraError
from evo_kernel.fitness import doctor, gpus
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from tests.fitness.fake_gpu import task_in, worker_command

CARDS = """0, GPU-aaaa, NVIDIA H200, 570.86.15, 4, 143771, 1980, 1980, 3201, 34, 76.30
1, GPU-bbbb, NVIDIA H200, 570.86.15, 90000, 143771, 1755, 1980, 3201, 61, 612.00
"""
USERS = """GPU-bbbb, 4711, /usr/bin/python3 train.py, with commas, 89000
GPU-bbbb, 4712, [Not Found], [N/A]
"""
NO_GPU = torch.version.cuda is None or torch.cuda.device_count() == 0


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    program = folder / "nvidia-smi"
    answers = folder / "answers.json"
    answers.write_text(json.dumps({"gpu": CARDS, "compute-apps": USERS}))
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nasked = sys.argv[1].removeprefix('--query-').split('=')[0]\n"
        f"assert sys.argv[2] == '--format=csv,noheader,nounits'\n"
        f"print(json.load(open({str(answers)!r}))[asked], end='')\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_every_card_is_listed_with_who_computes_on_it(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch)
    first, second = gpus.list_gpus()
    assert first.text.startswith("NVIDIA H200, driver 570.86.15, 4 of 143771 MiB") and first.processes == ()
    assert second.processes == (
        "4711 /usr/bin/python3 train.py, with commas (89000 MiB)",
        "4712 [Not Found] ([N/A] MiB)",
    )
    found = {one.name: one for one in doctor.diagnose_cards()}
    assert list(found)[:3] == ["gpu 0", "gpu 1", "gpu 1 is shared"] and "ncu" in found
    for words in ("NVIDIA H200", "driver 570.86.15", "90000 of 143771 MiB", "SMs at 1755 of 1980 MHz", "61 °C"):
        assert words in found["gpu 1"].detail
    assert not found["gpu 1 is shared"].ok and not found["gpu 1 is shared"].needed
    assert "unreliable" in found["gpu 1 is shared"].advice


def test_without_an_answer_there_are_no_cards(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, code=9)
    assert gpus.list_gpus() == []
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert gpus.list_gpus() == [] and list(doctor.diagnose_cards()) == []


@pytest.mark.parametrize(
    ("parameters", "capabilities", "permitted"),
    [
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n", "0000000000000000", True),
        ("RmProfilingAdminOnly: 1\n", "0000000000000000", False),
        ("RmProfilingAdminOnly: 1\n", "0000000000200000", True),
        ("Other: 1\n", "0000000000000000", None),
        (None, "0000000000000000", None),
    ],
)
def test_who_may_read_counters(tmp_path, parameters, capabilities, permitted):
    params, status = tmp_path / "params", tmp_path / "status"
    if parameters is not None:
        params.write_text(parameters)
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    assert gpus.counters_permitted(params, status) is permitted


def test_the_profiler_is_a_wish_not_a_need(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "find_ncu", lambda: None)
    assert (doctor.diagnose_profiler().ok, doctor.diagnose_profiler().needed, doctor.diagnose_profiler().detail) == (
        False,
        False,
        "not found",
    )
    monkeypatch.setattr(doctor, "find_ncu", lambda: "/somewhere/ncu")
    monkeypatch.setattr(gpus, "counters_permitted", lambda: False)
    assert (
        not doctor.diagnose_profiler().ok
        and "NVreg_RestrictProfilingToAdminUsers=0" in doctor.diagnose_profiler().advice
    )
    monkeypatch.setattr(gpus, "counters_permitted", lambda: True)
    assert doctor.diagnose_profiler().ok


@pytest.mark.parametrize(("text", "most"), [("100000 100000\n", 1), ("max 100000\n", None), ("nonsense", None)])
def test_cores_are_those_that_may_be_used(tmp_path, text, most):
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert gpus.usable_cores(limit) == (most or len(os.sched_getaffinity(0)))


def simulated(tmp_path, *more):
    task = task_in(tmp_path)
    command = worker_command(task)
    return lambda _, gpu, deadline_s: CudaRunner(task, gpu, deadline_s, command)


def test_the_judge_is_started_on_every_gpu_and_ceilings_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CudaRunner", simulated(tmp_path))
    arch, found = doctor.diagnose_gpus(2)
    assert arch == 90
    assert [one.name for one in found] == ["judge on gpu 0", "ceilings of gpu 0", "judge on gpu 1", "ceilings of gpu 1"]
    assert found[0].ok and "a simulated GPU, compute capability 9.0" in found[0].detail
    assert "copy" in found[1].detail and "measured" in found[1].detail
    assert not found[1].ok and "throttled" in found[1].advice  # it copies four kilobytes


def test_a_gpu_that_does_not_start_is_told_and_the_other_is_tried(tmp_path, monkeypatch):
    make = simulated(tmp_path)

    def broken(*arguments):
        runner = make(*arguments)
        if arguments[1] == 0:
            monkeypatch.setattr(runner, "start", lambda: (_ for _ in ()).throw(InfraError("fell off the bus")))
        return runner

    monkeypatch.setattr(doctor, "CudaRunner", broken)
    _, found = doctor.diagnose_gpus(2)
    assert [one.name for one in found] == ["judge on gpu 0", "judge on gpu 1", "ceilings of gpu 1"]
    assert (found[0].ok, found[0].needed, found[0].detail) == (False, True, "fell off the bus")


def run(*arguments):
    return CliRunner().invoke(cli, ["doctor", *arguments])


def test_doctor_on_the_cpu_says_what_scores_would_be():
    ended = run("--device", "cpu", "--json")
    assert ended.exit_code == 0, ended.output
    found = {one["name"]: one for one in json.loads(ended.output)["findings"]}
    assert "--device cpu: scores are modeled for an H200 (sm_90)" in found["device"]["detail"]
    assert found["ceilings"]["detail"].endswith("from the table for an H200 (sm_90)")
    assert found["recorder"]["ok"] and found["compiler (sm_90)"]["ok"] and "width=" in found["cores"]["detail"]


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU here")
def test_asking_for_a_gpu_where_there_is_none_fails_and_says_so():
    ended = run("--device", "cuda")
    assert ended.exit_code == 1 and "NO device" in ended.output and "ok recorder" in ended.output
    assert "--device cuda:" in ended.output and ("CPU build" in ended.output or "no CUDA GPU" in ended.output)
