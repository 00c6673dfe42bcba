"""The parent's side of the GPU process, with real processes around a simulated GPU: who is blamed, who is repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

import pytest

from evo_kernel.errors import InfraError, PlanError, UserError
from evo_kernel.fitness import gpus
from evo_kernel.fitness.runners import ipc
from evo_kernel.fitness.runners.base import Checked, CheckPart, PlanSetRequest, TimePart
from evo_kernel.fitness.runners.choose import RunnerPool, gpu_count
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.fitness.runners.process import Lost, WorkerProcess, load_ahead, loaded_ahead, open_log, worker_env
from evo_kernel.fitness.timing.ceilings import NAMES
from evo_kernel.fitness.timing.estimates import PairVerdict
from evo_kernel.types import Measurement, Status
from tests.fitness.fake_gpu import plan, task_in, worker_command

DEADLINE_S = 8.0


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return task_in(tmp_path_factory.mktemp("task"))


def runner_for(task, gpu=0, deadline_s=DEADLINE_S, kind=CudaRunner):
    command = worker_command(task)
    return kind(task, gpu, deadline_s, command)


@pytest.fixture(scope="module")
def runner(task):
    made = runner_for(task)
    made.start()
    yield made
    made.close()


def request_of(task, name):
    check, search = task.case("m3-n7"), task.case("m64-n128")
    return PlanSetRequest(
        (CheckPart(plan(name, 3, 7), check, ((1, "nominal"),)),), (TimePart(plan(name, 64, 128), search, 9),)
    )


def test_a_worker_that_was_started_ahead_is_the_runners_first(task):
    ahead = load_ahead(worker_command(task))
    made = runner_for(task)
    made.start()
    assert made.answer(request_of(task, "honest_80")).fault is None and ahead.served == 1
    made.close()
    assert not ahead.alive() and loaded_ahead(worker_command(task), 0) is None


def test_one_request_checks_and_times(task, runner):
    found = runner.answer(request_of(task, "honest_80"))
    assert found.fault is None and found.checks[0].passed
    measured = found.timings[0]
    assert isinstance(measured, Measurement) and measured.median_us == pytest.approx(80, rel=0.02)
    assert (measured.clock_mhz, measured.power_w) == (1980.0, 600.0) and measured.drift is not None
    assert measured.low_us <= measured.median_us <= measured.high_us and measured.n >= 3
    assert runner.busy_s > 0 and runner.spent_s["request"] >= runner.busy_s and runner.spent_s["time"] > 0


def test_check_measure_and_pair_one_by_one(task, runner):
    case = task.case("m64-n128")
    fast, slow = plan("honest_50", 64, 128), plan("honest_80", 64, 128)
    assert runner.check(fast, case, [(1, "nominal"), (2, "large")]).passed
    assert isinstance(runner.measure(fast, case, 3, against_us=100.0), Measurement)
    paired = runner.pair(slow, fast, case, 4)
    assert paired.verdict is PairVerdict.FASTER and paired.ratio == pytest.approx(1.6, rel=0.02)
    same = runner.pair(slow, slow, case, 4)
    assert same.verdict is PairVerdict.EQUAL
    wrong = runner.check(plan("wrong", 64, 128), case, [(1, "nominal")])
    assert wrong.status is Status.WRONG and wrong.error > 1


def test_baselines_report_by_name_and_ceilings_are_whole(task, runner):
    case = task.case("m64-n128")
    found = runner.baselines(case)
    assert set(found) == {"eager"}
    assert "no such path" in runner.baseline_faults["m64-n128: broken"]
    assert set(runner.ceilings()) == set(NAMES)


COMPILES = """
import pathlib, time

def compiled(x):
    done = pathlib.Path(__file__).with_name("done")
    while not done.exists():
        time.sleep(0.01)
    return torch.softmax(x, -1)

reference.compiled_baseline = compiled
"""


def test_candidates_have_the_gpu_while_a_baseline_is_compiled(tmp_path):
    task = task_in(tmp_path, COMPILES)
    made = runner_for(task)
    made.start()
    try:
        with ThreadPoolExecutor(1) as threads:
            baselines = threads.submit(made.baselines, task.case("m64-n128"))
            for _ in range(3):
                assert made.answer(request_of(task, "honest_80")).fault is None
            assert not baselines.done()
            (tmp_path / "done").touch()
            found = baselines.result(DEADLINE_S)
        assert set(found) == {"eager", "torch.compile"}
        assert made.baselines(task.case("m3-n7")).keys() == found.keys(), "by the same process"
    finally:
        made.close()


def test_a_runner_closes_while_a_baseline_is_compiled(tmp_path):
    made = runner_for(
        task := task_in(tmp_path, COMPILES.replace("    while", "    done.with_name('begun').touch()\n    while"))
    )
    made.start()
    with ThreadPoolExecutor(1) as threads:
        baselines = threads.submit(made.baselines, task.case("m64-n128"))
        try:
            while not (tmp_path / "begun").exists():
                assert not baselines.done()
                time.sleep(0.01)
            made.close()
            with pytest.raises(InfraError, match="closed"):
                baselines.result(DEADLINE_S)
        finally:
            (tmp_path / "done").touch()


def test_a_process_of_baselines_that_dies_costs_that_baseline_alone(tmp_path):
    dies = "\nimport os\nBASELINES['dies'] = lambda x: os._exit(1)\n"
    task = task_in(tmp_path, dies)
    made = runner_for(task)
    made.start()
    pid = made.info["pid"]
    try:
        assert set(made.baselines(task.case("m64-n128"))) == {"eager"}
        assert "died" in made.baseline_faults["m64-n128: dies"]
        assert made.info["pid"] == pid and made.respawns == 0
    finally:
        made.close()


def test_the_culprit_is_named_and_the_next_is_innocent(task, runner):
    for name, status in (
        ("illegal", Status.RUNTIME_ERROR),
        ("unlaunched", Status.RUNTIME_ERROR),
        ("dies", Status.RUNTIME_ERROR),
        ("oom", Status.RUNTIME_ERROR),
    ):
        found = runner.answer(request_of(task, name))
        assert found.fault is not None and found.fault.status is status, (name, found)
        after = runner.answer(request_of(task, "honest_80"))
        assert after.fault is None, (name, after)


def test_who_is_lost_with_a_process_is_the_part_that_ran(task, runner):
    first, second, search = task.case("m3-n7"), task.case("m4-n33"), task.case("m64-n128")
    good = CheckPart(plan("honest", 3, 7), first, ((1, "nominal"),))
    for name in ("dies", "illegal"):
        bad = CheckPart(plan(name, 4, 33), second, ((1, "nominal"),))
        found = runner.answer(PlanSetRequest((good, bad)))
        assert found.checks[0] is None and found.checks[1].status is Status.RUNTIME_ERROR
    late = runner.answer(PlanSetRequest((good,), (TimePart(plan("dies", 64, 128), search, 1),)))
    assert late.checks == (None,) and late.fault is late.timings[0]


def test_an_endless_kernel_times_out(task):
    runner = runner_for(task, deadline_s=1.5)
    try:
        runner.start()
        assert runner.answer(request_of(task, "endless")).fault.status is Status.TIMEOUT
        assert runner.answer(request_of(task, "honest")).fault is None
    finally:
        runner.close()


def test_a_worker_killed_from_outside_costs_nobody_a_verdict(task, runner):
    stop, served = threading.Event(), Counter()

    def ask(_=None):
        found = runner.answer(request_of(task, "honest_80"))
        served[runner.info["pid"]] += 1
        return found

    def kill():
        while not stop.wait(0.7):
            if served[pid := runner.info["pid"]] > 2:
                os.kill(pid, signal.SIGKILL)

    before = runner.respawns
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(ask, range(40)))
        while runner.respawns == before:
            assert ask().fault is None
    finally:
        stop.set()
        killer.join()
    assert all(one.fault is None for one in found)


def test_a_process_that_reads_nothing_or_never_ends_is_not_waited_for(monkeypatch):
    process = WorkerProcess((sys.executable, "-c", "import time; time.sleep(60)"), 0, open_log())
    with pytest.raises(Lost):
        process.ask(bytes(1 << 20), 0.2)
    monkeypatch.setattr("evo_kernel.fitness.runners.process._END_S", 0.1)
    with monkeypatch.context() as alive, pytest.raises(InfraError, match="hangs in the driver"):
        alive.setattr(os, "killpg", lambda *_: None)
        process.kill()
    monkeypatch.undo()
    process.kill()
    assert not process.alive()


def test_a_closed_runner_says_so(task):
    runner = runner_for(task)
    runner.close()
    with pytest.raises(InfraError, match="closed"):
        runner.start()


def test_a_bug_of_ours_is_no_plans_fault(task, runner):
    with pytest.raises(InfraError, match="the GPU process failed:"):
        runner.request({"command": "nonsense"})
    assert runner.answer(request_of(task, "honest")).fault is None


def test_a_bug_that_a_plan_brings_about_is_its_verdict(task, runner):
    fault = runner.answer(request_of(task, "stumbles")).fault
    assert fault is not None and fault.status is Status.RUNTIME_ERROR
    assert "raised an exception on it: KeyError" in fault.reason
    assert runner.answer(request_of(task, "honest")).fault is None


class Losing(CudaRunner):
    """Of a GPU that can be lost."""

    lost = False

    def request(self, *args, **kwargs):
        if self.lost:
            raise InfraError("the GPU fell off the bus")
        return super().request(*args, **kwargs)


class OtherModel(CudaRunner):
    def environment(self, confinement):
        return replace(super().environment(confinement), device="another GPU")


def test_two_gpus_share_the_work(task):
    runners = [runner_for(task, gpu, kind=Losing) for gpu in (0, 1)]
    pool = RunnerPool(runners)
    try:
        pool.start()
        assert pool.environment("").device == "a simulated GPU"
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: pool.answer(request_of(task, "honest_80")), range(8)))
        assert all(one.fault is None for one in found)
        assert all(runner.spent_s["request"] > 0 for runner in runners)
        runners[0].lost = True
        for _ in range(4):
            assert pool.answer(request_of(task, "honest")).fault is None
    finally:
        pool.close()


def test_gpus_of_two_models_are_refused(task):
    pool = RunnerPool([runner_for(task, 0, kind=OtherModel), runner_for(task, 1)])
    try:
        with pytest.raises(UserError, match="differ"):
            pool.start()
    finally:
        pool.close()


def test_which_gpu_a_worker_sees(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert worker_env(1)["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert worker_env(1)["CUDA_VISIBLE_DEVICES"] == "1"
    assert (gpu_count("all", 4), gpu_count("2", 4)) == (4, 2)
    for wrong in ("0", "5", "x"):
        with pytest.raises(UserError, match="--gpus"):
            gpu_count(wrong, 4)


def test_plans_travel_unchanged_and_are_validated():
    import io

    plans = [plan("honest", 3, 7), plan("honest", 64, 128), plan("wrong", 3, 7)]
    message = ipc.pack({"command": "plan set", "a": 1}, plans)
    requests = list(ipc.unpack(io.BytesIO(message + message)))
    assert len(requests) == 2 and requests[0]["a"] == 1 and len(requests[0]["blobs"]) == 2
    assert [ipc.plan_of(requests[1], n) for n in range(3)] == plans
    assert list(ipc.unpack(io.BytesIO(message[:-1]))) == []
    requests[0]["plans"][0]["binaries"][0]["num_warps"] = 4096
    with pytest.raises(PlanError):
        ipc.plan_of(requests[0], 0)


def test_checked_is_what_a_lost_exam_leaves(task, runner):
    only = PlanSetRequest(timings=(TimePart(plan("dies", 64, 128), task.case("m64-n128"), 1),))
    found = runner.answer(only)
    assert isinstance(found.timings[0], Checked) and found.fault is found.timings[0]


class OnOneGpu(CudaRunner):
    """All of them say that they run on the same GPU."""

    card = "GPU-one"


def test_runners_take_turns_on_a_gpu(task):
    first, second, third = (runner_for(task, kind=OnOneGpu) for _ in range(3))
    pool = RunnerPool([second, runner_for(task)])
    with ThreadPoolExecutor(2) as threads:
        with first.fresh():
            waits = threads.submit(second.answer, request_of(task, "honest_80"))
            closed = threads.submit(third.answer, request_of(task, "honest_80"))
            assert not second.is_free and pool._take() is not second
            time.sleep(0.3)
            assert not waits.done() and not closed.done()
            assert gpus.is_wanted("GPU-one")
            assert first.answer(request_of(task, "honest_80")).fault is None, "room is made after it"
            third.close()
            with pytest.raises(InfraError, match="is closed"):
                closed.result(5.0)
        assert waits.result(5.0).fault is None
    first.close()
    pool.close()


def test_a_process_that_dies_gives_its_turn_back():
    code = "import time; from evo_kernel.fitness.gpus import turn\nwith turn('GPU-two', bool): print('mine', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"mine\n"
        assert not gpus.is_free("GPU-two")
        other.kill()
    with gpus.turn("GPU-two", bool):
        assert not gpus.is_free("GPU-two") and not gpus.is_wanted("GPU-two")
    assert gpus.is_free("GPU-two")


def test_who_comes_again_at_once_does_not_get_the_gpu_twice_in_a_row():
    turns: list[str] = []

    def take(name):
        for _ in range(10):
            with gpus.turn("GPU-three", bool):
                turns.append(name)
                time.sleep(0.05)  # long enough for the other to ask again, on busy cores too

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(take, name) for name in "ab"]:
            done.result()
    assert max(len(list(run)) for _, run in groupby(turns[:16])) <= 2


def test_a_turn_without_end_is_passed_over(monkeypatch):
    monkeypatch.setattr(gpus, "MOST_WAIT_S", 0.1)
    with gpus.turn("GPU-four", bool):
        began = time.monotonic()
        with gpus.turn("GPU-four", bool):
            assert time.monotonic() - began >= 0.1
        assert not gpus.is_free("GPU-four")  # still the first one's
