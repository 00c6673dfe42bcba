"""A pool of hosts behind a transport: whoever dies, hangs, joins or differs, each request is answered and counted once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import replace

import pytest

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool import pool as pools
from evo_kernel.fitness.spool.messages import Announcement, SpoolRequest
from evo_kernel.fitness.spool.pool import HostLost, HostPool, PooledJudge
from evo_kernel.fitness.spool.server import server_name
from evo_kernel.fitness.spool.warm_judges import WarmJudges
from evo_kernel.tasks.loading import load
from evo_kernel.types import Environment, Purpose, Source
from tests.support.scripted import ENVIRONMENT, scored
from tests.support.spool_servers import InstantJudge

OTHER = replace(ENVIRONMENT, driver="another")
SETTINGS = JudgeSettings(tune_plans=2)


def kernel(number: int) -> Source:
    return Source(f"time_us = {number + 1}.0\n")


class HostHere:
    """Implements JudgeHost with judges in threads. `killed`: nothing comes out of it any more."""

    def __init__(self, name: str, environment: Environment, scratch, before, slots: int) -> None:
        self.announcement = Announcement(server=server_name(), beat=0, environment=environment, slots=slots)
        self._judges = WarmJudges(
            lambda task, settings: InstantJudge(task.identity, environment, lambda source: before(name, source), scored),
            scratch, JudgeSettings(),
        )  # fmt: skip
        self._threads, self._slots = ThreadPoolExecutor(slots), slots
        self.killed, self.most, self._busy = threading.Event(), 0, 0

    def answer(self, request: bytes, within_s: float) -> bytes:
        asked, until = SpoolRequest.from_bytes(request), time.monotonic() + within_s
        self._busy += 1
        self.most = max(self.most, self._busy)
        told = self.announcement
        found = self._threads.submit(self._judges.answer, asked, told.server, told.environment)
        try:
            while not self.killed.is_set() and time.monotonic() < until:
                try:
                    data = found.result(0.01).as_bytes()
                except Late:
                    continue
                if not self.killed.is_set():
                    return data
            raise HostLost("killed" if self.killed.is_set() else "late")
        finally:
            self._busy -= 1

    def is_alive(self) -> bool:
        return not self.killed.is_set()

    def close(self) -> None:
        self.killed.set()
        self._threads.shutdown(wait=False)


class HostsHere:
    """Implements Hosts: `there` is what a test makes of it."""

    place = "here"

    def __init__(self, tmp_path, there: dict[str, Environment | Exception], before=lambda name, source: None) -> None:
        self._tmp_path, self.there, self._before = tmp_path, dict(there), before
        self.opened: list[tuple[str, HostHere]] = []
        self.closed = False

    def names(self) -> dict[str, str]:
        return {name: f"host {name}" for name in list(self.there)}

    def open(self, host: str, wanted) -> HostHere:
        found = self.there.get(host)
        if found is None:
            raise HostLost("it has left")
        if isinstance(found, Exception):
            raise found
        one = HostHere(host, found, self._tmp_path, self._before, 2)
        self.opened.append((host, one))
        return one

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def task():
    return load("softmax")


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.02)


@pytest.fixture
def opened(tmp_path, task) -> Iterator:
    judges = []

    def open_one(there, before=lambda name, source: None, known=None, choice="", settings=SETTINGS):
        hosts, said = HostsHere(tmp_path, there, before), []
        judges.append(PooledJudge(HostPool(hosts, known, choice, said.append), task, settings))
        return judges[-1], hosts, said

    yield open_one
    for judge in judges:
        judge.close()
        assert not judge.folder.path.exists()


def test_hosts_killed_at_random_lose_nothing_and_count_nothing_twice(opened):
    draw = random.Random(5)
    judge, hosts, said = opened({"a": ENVIRONMENT, "b": ENVIRONMENT}, lambda name, source: time.sleep(0.005))
    ended = threading.Event()

    def kill() -> int:
        kills = 0
        while not ended.wait(draw.uniform(0.03, 0.1)):
            alive = [one for _, one in hosts.opened if one.is_alive()]
            if alive:
                draw.choice(alive).killed.set()
                kills += 1
        return kills

    with ThreadPoolExecutor(1) as killer:
        kills = killer.submit(kill)
        found = judge.evaluate_all([kernel(number) for number in range(150)], Purpose.SCORE)
        ended.set()
    print(f"{kills.result()} kills, {len(hosts.opened)} hosts opened")
    assert kills.result() >= 5 and len(hosts.opened) >= 5, "hosts that were killed come back"
    assert [one.source for one in found] == [kernel(number).sha256 for number in range(150)]
    assert all(one.passed and one.charged == {"score": 1} for one in found)
    assert max(one.most for _, one in hosts.opened) <= 2, "no more is in flight than a host has slots"
    assert any("judged again" in line for line in said)


def test_environments_are_never_mixed_and_the_first_wins(opened):
    judged = []
    judge, hosts, said = opened({"a": ENVIRONMENT}, lambda name, source: judged.append(name))
    hosts.there["b"] = OTHER
    hosts.there["c"] = ENVIRONMENT  # joins late
    while len(hosts.opened) < 3:
        time.sleep(0.01)
    found = judge.evaluate_all([kernel(number) for number in range(60)], Purpose.SCORE)
    assert {one.environment for one in found} == {ENVIRONMENT} and set(judged) == {"a", "c"}
    assert [line for line in said if "host b is left alone" in line and OTHER.key in line and ENVIRONMENT.key in line]


@pytest.mark.parametrize("bound", [{"known": OTHER}, {"choice": OTHER.key}])
def test_a_population_or_a_choice_says_whose_times_are_wanted(opened, bound):
    judge, _, _ = opened({"a": ENVIRONMENT, "b": OTHER}, **bound)
    assert judge.environment == OTHER and judge.evaluate(kernel(1), Purpose.SCORE).environment == OTHER
    with pytest.raises(UserError, match=f"no judge of here will do: host a is left alone.*{ENVIRONMENT.key}"):
        opened({"a": ENVIRONMENT}, **bound)


def test_a_hang_ends_at_its_deadline_and_a_straggler_may_go_on(opened, monkeypatch):
    monkeypatch.setattr(pools, "HANG_STEPS", 1)
    hung, released = [], threading.Event()

    def before(name: str, source: Source) -> None:
        if source == kernel(1) and not hung:
            hung.append(name)
            released.wait(20.0)
        if source == kernel(2):
            time.sleep(0.3)  # less than its deadline

    settings = replace(SETTINGS, deadline_s=0.5)
    judge, hosts, _ = opened({"a": ENVIRONMENT, "b": ENVIRONMENT}, before, settings=settings)
    began = time.monotonic()
    found = judge.evaluate_all([kernel(1), kernel(2)], Purpose.SCORE)
    assert time.monotonic() - began >= 0.5 and all(one.passed and one.charged == {"score": 1} for one in found)
    assert len(hosts.opened) >= 3, "the one that hung was opened anew"
    released.set()  # too late: its host is gone
    assert judge.evaluate(kernel(1), Purpose.SCORE).charged == {}


def test_a_request_that_kills_every_host_is_the_machines_failure(opened, monkeypatch):
    monkeypatch.setattr(pools, "MOST_LOSSES", 3)
    killed = []

    def before(name: str, source: Source) -> None:
        if source == kernel(1):
            killed.append(name)
            [one for host, one in hosts.opened if host == name][-1].killed.set()

    judge, hosts, _ = opened({"a": ENVIRONMENT}, before)
    monkeypatch.setattr(judge, "_look_s", 0.05)
    with pytest.raises(InfraError, match="3 judges were lost while they had it"):
        judge.evaluate(kernel(1), Purpose.SCORE)
    assert len(killed) == 3 and judge.evaluate(kernel(2), Purpose.SCORE).passed


def test_a_host_that_does_not_open_is_told_of_and_the_others_judge(opened):
    judge, _, said = opened({"a": UserError("no sandbox here"), "b": InfraError("no GPU"), "c": ENVIRONMENT})
    assert judge.evaluate(kernel(1), Purpose.SCORE).passed
    while len(said) < 2:
        time.sleep(0.01)
    assert sorted(said) == ["host a does not judge: no sandbox here", "host b does not judge: no GPU"]
    with pytest.raises(UserError, match="no judge of here will do: host a does not judge: no sandbox here"):
        opened({"a": UserError("no sandbox here")})
    with pytest.raises(UserError, match="no judge of here will do: host b does not judge: no GPU"):
        opened({"b": InfraError("no GPU")})


def test_a_host_that_fails_for_a_while_is_not_given_up(opened):
    judge, hosts, said = opened({"a": ENVIRONMENT})
    hosts.there["a"] = InfraError("the driver is being updated")
    hosts.opened[0][1].killed.set()
    while not any("the driver is being updated" in line for line in said):
        time.sleep(0.01)
    hosts.there["a"] = ENVIRONMENT
    assert judge.evaluate(kernel(1), Purpose.SCORE).passed


def test_a_host_that_left_and_comes_back_is_used_again(opened):
    judge, hosts, _ = opened({"a": ENVIRONMENT})
    assert judge.evaluate(kernel(1), Purpose.SCORE).passed
    del hosts.there["a"]
    hosts.opened[0][1].killed.set()
    with ThreadPoolExecutor(1) as asked:
        verdict = asked.submit(judge.evaluate, kernel(2), Purpose.SCORE)
        time.sleep(0.2)
        assert not verdict.done()
        hosts.there["a"] = ENVIRONMENT
        assert verdict.result(10.0).passed
    judge.close()
    assert hosts.closed and not any(one.is_alive() for _, one in hosts.opened)
