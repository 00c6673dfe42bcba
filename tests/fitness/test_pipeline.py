"""The gauge: who is at which stage, how busy each GPU is; and that the judge and its runners mark it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.runners.base import CheckPart, PlanSetRequest
from evo_kernel.fitness.runners.choose import RunnerPool
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.fitness.stages import COMPILING, EXECUTING, ON_GPU, RECORDING, THINKING, WAITING, Stages
from evo_kernel.fitness.timing.ceilings import NAMES, Ceilings, KnownCeilings
from evo_kernel.types import Purpose, Source
from tests.fitness.fake_gpu import plan, task_in, worker_command
from tests.support.small_tasks import small_softmax


def counts(stages: Stages) -> dict[str, int]:
    return {name: count for name, count in stages.state().stages.items() if count}


def eventually(true: Callable[[], bool], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def test_a_thread_counts_once_where_it_is_innermost() -> None:
    stages = Stages((0,))
    assert list(stages.state().stages) == [THINKING, RECORDING, COMPILING, WAITING, ON_GPU]
    with stages.at(THINKING), stages.at(RECORDING):
        with stages.at(COMPILING):
            assert counts(stages) == {COMPILING: 1}
        with ThreadPoolExecutor(1) as threads, stages.at(RECORDING):
            assert threads.submit(lambda: counts(stages)).result() == {RECORDING: 1}
        assert counts(stages) == {RECORDING: 1}
    with pytest.raises(ValueError, match="broken"), stages.at(THINKING):
        raise ValueError("broken")
    assert counts(stages) == {}


def test_two_wait_while_one_is_on_the_gpu() -> None:
    stages, lock, leave = Stages((0,)), threading.Lock(), threading.Event()

    def take_a_turn() -> None:
        with stages.turn(lock, 0):
            leave.wait(20)

    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(take_a_turn)
        eventually(lambda: counts(stages) == {WAITING: 2, ON_GPU: 1})
        leave.set()
    assert counts(stages) == {} and not lock.locked()


def test_busy_shares_of_the_last_moments_and_of_the_session() -> None:
    now = [0.0]
    stages, locks = Stages((0, 1), clock=lambda: now[0]), (threading.Lock(), threading.Lock())
    with stages.turn(locks[0], 0):
        now[0] = 10.0
    assert stages.state().busy_recent == (1.0, 0.0)  # there were only ten seconds so far
    now[0] = 50.0
    with stages.turn(locks[1], 1):
        now[0] = 65.0
        state = stages.state()
        assert state.busy_recent == (0.0, 0.5)  # one that is still there counts
    assert state.recent_s == 30.0 and state.busy_session == pytest.approx((10 / 65, 15 / 65))
    now[0] = 85.0
    assert stages.state().busy_recent == pytest.approx((0.0, 10 / 30))  # 20 to 30 seconds ago
    now[0] = 1000.0
    assert stages.state().busy_recent == (0.0, 0.0)
    assert stages.state().busy_session == pytest.approx((0.01, 0.015))


def test_who_has_a_gpu_to_itself_is_on_it_once() -> None:
    now, lock = [0.0], threading.RLock()
    stages = Stages((0,), clock=lambda: now[0])
    with stages.turn(lock, 0):
        now[0] = 4.0
        with stages.turn(lock, 0):
            now[0] = 6.0
            assert counts(stages) == {ON_GPU: 1}
        assert counts(stages) == {ON_GPU: 1}
        now[0] = 8.0
    now[0] = 16.0
    assert stages.state().busy_session == (0.5,)


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[list[CudaRunner]]:
    task = task_in(tmp_path)
    made = [CudaRunner(task, gpu, 8.0, worker_command(task)) for gpu in (0, 1)]
    yield made
    for runner in made:
        runner.close()


def test_runners_of_a_pool_mark_one_gauge(runners: list[CudaRunner], tmp_path: Path) -> None:
    pool = RunnerPool(runners)
    pool.start()
    asked = PlanSetRequest((CheckPart(plan("honest", 3, 7), task_in(tmp_path).case("m3-n7"), ((1, "nominal"),)),))
    with ThreadPoolExecutor(3) as threads:
        with runners[0].fresh(), runners[1].fresh():
            found = [threads.submit(pool.answer, asked) for _ in range(3)]
            eventually(lambda: counts(pool.stages)[WAITING] == 3)
        assert all(one.result().fault is None for one in found)
    state = pool.stages.state()
    assert pool.stages.gpus == (0, 1) and not any(state.stages.values())
    assert all(0 < share < 1 for share in state.busy_session)


def test_the_judge_without_a_gpu_marks_its_way(tmp_path: Path) -> None:
    task = small_softmax(tmp_path)
    assert task.seed is not None and "/ row_sum" in task.seed.text
    source = Source(task.seed.text.replace("/ row_sum", "/ (row_sum * 8.0 * 0.125)"))  # that no judge has compiled
    with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        seen: set[str] = set()
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(judge.evaluate, source, Purpose.SCORE)
            while not done.done():
                now = counts(judge.stages)
                assert len(now) <= 1 and sum(now.values()) <= 2  # of its cases two are executed side by side
                seen |= set(now)
                time.sleep(0.001)
        assert done.result().passed
        assert seen == {RECORDING, COMPILING, EXECUTING}
        assert judge.stages.state().busy_recent == () and judge.stages.gpus == ()
        assert not judge.ceilings.measured


# --- ceilings -----------------------------------------------------------------------------------------------------

TABLE = Ceilings.of_target(target_for(90))
STORED = dict.fromkeys(NAMES, 7.0)


def test_known_ceilings_are_not_measured() -> None:
    known = KnownCeilings(lambda: pytest.fail("they are known"), TABLE)
    assert known.know(STORED)
    assert known.now.as_data() == STORED and known.now.measured
    assert known.limits.copy_bytes_per_s == TABLE.copy_bytes_per_s  # a throttled measurement refuses nobody


def test_unknown_ceilings_are_measured_once_and_late() -> None:
    asked: list[int] = []

    def measure() -> dict[str, float]:
        asked.append(1)
        time.sleep(0.05)
        return STORED

    known = KnownCeilings(measure, TABLE)
    assert not known.know({}) and not known.know({"copy_bytes/s": 1.0}) and not asked  # incomplete: as if unknown
    with ThreadPoolExecutor(4) as threads:
        assert {one.result() for one in [threads.submit(lambda: known.now) for _ in range(4)]} == {known.now}
    assert asked == [1] and known.now.measured


def test_without_a_gpu_the_table_stands_in() -> None:
    known = KnownCeilings(dict, TABLE)
    assert known.now == TABLE and not known.now.measured


def test_ceilings_read_as_datasheets_do() -> None:
    assert TABLE.text.startswith("copy 4.26 TB/s, bf16 789 TFLOP/s") and "launch 2.0 µs" in TABLE.text
