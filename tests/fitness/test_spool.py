"""A spool: what is asked is answered once, whoever dies, whatever is torn, however late it is carried."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.deadline import Deadline
from evo_kernel.errors import CutShort, InfraError, UserError
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.profiling.profiler import CaseProfile
from evo_kernel.fitness.spool import folder as folders
from evo_kernel.fitness.spool.client import SpoolJudge, open_spool_judge
from evo_kernel.fitness.spool.folder import Heartbeats, SpoolFolder
from evo_kernel.fitness.spool.messages import (
    MOST_BYTES,
    Announcement,
    Malformed,
    ProfileWanted,
    SpoolAnswer,
    SpoolRequest,
    TaskText,
)
from evo_kernel.fitness.spool.server import SpoolServer
from evo_kernel.fitness.spool.task_files import packed, unpacked
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, CheckResult, Evaluation, PairedComparison, Purpose, Rival, Source
from tests.support.commands import ROOT
from tests.support.scripted import ENVIRONMENT, scored
from tests.support.spool_servers import server

OTHER = replace(ENVIRONMENT, driver="another")
SETTINGS = JudgeSettings(tune_plans=2)


def kernel(number: int) -> Source:
    return Source(f"time_us = {number + 1}.0\n")


@pytest.fixture(scope="module")
def task():
    return load("softmax")


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return tmp_path / "box"


def asking(box: Path, task, environment=ENVIRONMENT, **quick: float) -> SpoolJudge:
    return SpoolJudge(SpoolFolder(box), task, environment, SETTINGS, **{"lease_s": 1.0, "look_s": 0.05} | quick)


@contextlib.contextmanager
def serving(*servers: SpoolServer) -> Iterator[None]:
    threads = [threading.Thread(target=one.run) for one in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in servers:
            one.stop()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive()


def left(box: Path) -> dict[str, int]:
    kinds = (folders.REQUESTS, folders.CLAIMED, folders.ASIDE)
    return {kind: count for kind in kinds if (count := len(os.listdir(box / kind)))}


def reasons(box: Path) -> str:
    return "\n".join(path.read_text() for path in (box / folders.ASIDE).glob("*.reason"))


def request_of(box: Path, task, source: Source) -> Path:
    """The request that a judge writes for a source, before anybody serves it."""
    judge = asking(box, task)
    judge.give_up()
    with pytest.raises(CutShort):
        judge.evaluate(source, Purpose.SCORE)
    (found,) = (box / folders.REQUESTS).iterdir()
    return found


# ---- verdicts come home ---------------------------------------------------------------------------------------------


def test_a_verdict_is_the_one_that_was_made_and_is_counted_once(box, task, tmp_path):
    heard = []
    with serving(server(box, tmp_path)):
        judge = asking(box, task)
        judge.baselines.on_baselines = lambda *told: heard.append(told)
        found = judge.evaluate(kernel(4), Purpose.SCORE)
        again = asking(box, task).evaluate(kernel(4), Purpose.SCORE)
    assert found == replace(scored(kernel(4), Purpose.SCORE), task=task.identity)
    assert again == replace(found, charged={}, verdicts=())
    assert heard == [("large", {"first": 100.0}, {})]
    assert left(box) == {}


def test_what_is_measured_anew_is_asked_anew(box, task, tmp_path):
    judged = []
    with serving(server(box, tmp_path, before=judged.append)):
        judge = asking(box, task)
        every = [judge.evaluate(kernel(1), Purpose.SCORE, remeasure=True) for _ in range(3)]
        every += [judge.evaluate(kernel(1), Purpose.CONFIRM, against=kernel(2)) for _ in range(2)]
        every.append(judge.evaluate(kernel(1), Purpose.CONFIRM, against=kernel(3)))
    assert len(judged) == 6 and all(sum(one.charged.values()) == 1 for one in every)


@pytest.fixture
def interruptible():
    """Python's own handler: a process that a shell started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_wait_for_many(box, task, interruptible):
    judge, threads = asking(box, task), threading.active_count()
    interrupt = threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        judge.evaluate_all([kernel(1), kernel(2)], Purpose.SCORE)
    assert threading.active_count() <= threads + 1
    assert len(judge.folder.waiting()) == 2, "its requests stay"


def test_many_are_judged_side_by_side_at_a_rate_that_needs_no_excuse(box, task, tmp_path):
    with serving(server(box, tmp_path, slots=8)):
        judge = asking(box, task)
        judge.evaluate(kernel(0), Purpose.SCORE)
        began = time.monotonic()
        found = judge.evaluate_all([kernel(number) for number in range(1, 201)], Purpose.SCORE)
        rate = 200 / (time.monotonic() - began)
    assert [one.source for one in found] == [kernel(number).sha256 for number in range(1, 201)]
    print(f"{rate:.0f} instant requests/s")
    assert rate > 40


# ---- servers die, race, fail ----------------------------------------------------------------------------------------


def test_servers_killed_at_random_lose_nothing_and_count_nothing_twice(box, task):
    command = [sys.executable, "-m", "tests.support.spool_servers", str(box), "--kills", "50", "--seed", "7"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdin is not None and servers.stdout is not None
        assert servers.stdout.readline() == "ready\n"
        judge, killed = asking(box, task), threading.Event()

        def ask(lane: int) -> list[Evaluation]:
            found = []
            while not killed.is_set() or len(found) < 5:
                found.append(judge.evaluate(kernel(lane * 100_000 + len(found)), Purpose.SCORE))
            return found

        with ThreadPoolExecutor(12) as lanes:
            asked = [lanes.submit(ask, lane) for lane in range(12)]
            assert servers.stdout.readline() == "killed\n"
            killed.set()
            found = [one for lane in asked for one in lane.result(60.0)]
        servers.stdin.close()
        assert servers.wait(20.0) == 0
    print(f"{len(found)} verdicts, 50 kills")
    assert len({one.source for one in found}) == len(found) >= 12 * 5
    assert all(one.passed and one.charged == {"score": 1} for one in found)
    assert len(os.listdir(box / folders.TAKEN)) == len(found)
    assert left(box) == {}


def test_two_servers_that_race_take_each_request_once(box, task, tmp_path):
    judged: list[str] = []
    quick = {"before": lambda source: judged.append(source.sha256), "slots": 2}
    with serving(*(server(box, tmp_path / str(number), **quick) for number in range(4))):
        found = asking(box, task).evaluate_all([kernel(number) for number in range(120)], Purpose.SCORE)
    assert len(found) == len(judged) == len(set(judged)) == 120


def test_a_machine_that_fails_gives_the_request_back_and_another_judges_it(box, task, tmp_path):
    failed = []

    def fail(source: Source) -> None:
        failed.append(source)
        raise InfraError("the GPU fell off the bus")

    with serving(server(box, tmp_path / "a", before=fail)):
        judge = asking(box, task)
        with ThreadPoolExecutor(1) as asked:
            verdict = asked.submit(judge.evaluate, kernel(3), Purpose.SCORE)
            while not failed:
                time.sleep(0.01)
            assert not verdict.done()
            with serving(server(box, tmp_path / "b")):
                assert verdict.result(20.0).passed


def test_a_machine_that_is_well_again_takes_what_it_had_refused(box, task, tmp_path):
    well: list[bool] = []

    def fail(source: Source) -> None:
        if not well:
            raise InfraError("No space left on device")

    with serving(server(box, tmp_path, before=fail, try_again_s=0.05)):
        judge = asking(box, task)
        with pytest.raises(InfraError, match="No space left"):
            judge.evaluate(kernel(3), Purpose.SCORE)
        well.append(True)
        time.sleep(1.0)
        assert judge.evaluate(kernel(3), Purpose.SCORE).passed


def test_a_request_that_no_server_takes_is_the_machines_failure_with_their_reason(box, task, tmp_path):
    judge, troubles = asking(box, replace_identity(task)), []
    judge.on_trouble = troubles.append
    with serving(server(box, tmp_path)), pytest.raises(InfraError, match="install the same evo-kernel on both sides"):
        judge.evaluate(kernel(3), Purpose.SCORE, deadline=Deadline(time.monotonic() + 20.0))
    assert len(troubles) == 1


def replace_identity(task):
    return replace(task, text=task.text + "\n# another version\n")


def test_a_server_that_is_stopped_finishes_or_gives_back(box, task, tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def slow(source: Source) -> None:
        begun.set()
        go_on.wait(20.0)

    one = server(box, tmp_path, before=slow, grace_s=0.2)
    judge = asking(box, task)
    with ThreadPoolExecutor(1) as asked:
        verdict = asked.submit(judge.evaluate, kernel(3), Purpose.SCORE)
        with serving(one):
            assert begun.wait(10.0)
        assert left(box) == {folders.REQUESTS: 1} and one.served.given_back == 1
        assert [told.ended for told in SpoolFolder(box).announcements().values()] == [True]
        go_on.set()  # late: its judge is closed by now
        with serving(server(box, tmp_path / "b")):
            assert verdict.result(20.0).passed


def test_a_server_ends_when_the_spool_is_empty_or_its_time_is_up(box, task, tmp_path):
    request_of(box, task, kernel(1))
    one = server(box, tmp_path)
    assert sum(one.run(until_empty=True).judged.values()) == 1 and left(box) == {}
    began = time.monotonic()
    server(box, tmp_path).run(for_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    # What a dead server had is waited for, not left behind.
    request = request_of(box, task, kernel(2))
    request.rename(box / folders.CLAIMED / f"{request.stem}@dead-1.json")
    assert sum(server(box, tmp_path).run(until_empty=True).judged.values()) == 1 and left(box) == {}


def test_a_lease_ends_by_the_observers_own_clock(box):
    now, folder = [0.0], SpoolFolder(box)
    folder.prepare()
    beats = Heartbeats(folder, 10.0, lambda: now[0])
    told = Announcement(server="one", beat=1, environment=ENVIRONMENT)

    def announce(beat: int, ended: bool = False) -> None:
        folder.write(folders.SERVERS, "one.json", told.model_copy(update={"beat": beat, "ended": ended}).as_bytes())
        beats.look()

    announce(1)
    assert not beats.is_dead("one") and not beats.at_work() and not beats.is_dead("unheard-of")
    for moment in range(5, 50, 5):
        now[0] = moment
        announce(moment)
        assert not beats.is_dead("one") and beats.at_work()
    assert beats.is_dead("unheard-of")
    now[0] += 10.0
    assert beats.is_dead("one") and not beats.at_work()
    announce(100)
    assert not beats.is_dead("one")
    announce(101, ended=True)
    assert beats.is_dead("one")


# ---- torn, hostile, lost, late --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["torn", "empty", "link", "pipe", "huge", "renamed", "unconfined", "deep"])
def test_a_hostile_request_is_set_aside_with_its_reason_and_the_honest_one_is_judged(box, task, tmp_path, fault):
    request = request_of(box, task, kernel(1))
    honest = request.read_bytes()
    request.unlink()
    bad = request.with_name(request.name.replace("-0.json", "-7.json"))
    match fault:
        case "torn":
            bad.write_bytes(honest[: len(honest) // 2])
        case "empty":
            bad.touch()
        case "link":
            bad.symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(bad)
        case "huge":
            with open(bad, "wb") as file:
                file.truncate(MOST_BYTES + 1)
        case "renamed":
            bad.write_bytes(honest)
        case "unconfined":
            bad.write_bytes(honest.replace(b'"unconfined":false', b'"unconfined":true'))
        case "deep":
            bad.write_bytes(b"[" * 100_000)
    with serving(server(box, tmp_path)):
        assert asking(box, task).evaluate(kernel(1), Purpose.SCORE).passed
        while bad.name in os.listdir(box / folders.REQUESTS):
            time.sleep(0.01)
    assert (box / folders.ASIDE).is_dir() and len(reasons(box)) > 10
    assert left(box) == {folders.ASIDE: 2}


def test_whoever_asks_hears_why_a_request_was_set_aside(box, task, tmp_path):
    """Such as one that servers of another version do not read."""
    request = request_of(box, task, kernel(1))
    request.write_bytes(request.read_bytes().replace(b'"effort":1', b'"effort":0'))
    judge, troubles = asking(box, task), []
    judge.on_trouble = troubles.append
    with serving(server(box, tmp_path)):
        assert judge.evaluate(kernel(1), Purpose.SCORE).passed
    assert len(troubles) == 1 and "effort" in troubles[0]


def test_what_no_server_reads_is_not_written(box, task):
    with pytest.raises(UserError, match="the most is"):
        asking(box, task).evaluate(Source("#" * MOST_BYTES), Purpose.SCORE)
    assert left(box) == {}


@pytest.mark.parametrize(
    "fault", ["torn", "other source", "other environment", "infinite", "other request", "score", "refund"]
)
def test_a_verdict_that_is_none_is_set_aside_and_asked_for_again(box, task, tmp_path, fault):
    stem = request_of(box, task, kernel(1)).stem
    good = replace(scored(kernel(1), Purpose.SCORE), task=task.identity)
    wrong = {
        "other source": replace(good, source=kernel(2).sha256),
        "other environment": replace(good, environment=OTHER),
        "infinite": replace(good, wall_s=math.inf),
        "score": replace(good, score=1000.0),
        "refund": replace(good, gpu_s=-3600.0),
    }.get(fault, good)
    data = SpoolAnswer(request="x" if fault == "other request" else stem, server="s", evaluation=wrong).as_bytes()
    judge, troubles = asking(box, task), []
    judge.on_trouble = troubles.append
    SpoolFolder(box).write(folders.VERDICTS, f"{stem}.json", data[:200] if fault == "torn" else data)
    with ThreadPoolExecutor(1) as asked:
        verdict = asked.submit(judge.evaluate, kernel(1), Purpose.SCORE)
        while not troubles:
            time.sleep(0.01)
        with serving(server(box, tmp_path)):
            assert verdict.result(20.0) == good
    assert "set aside" in troubles[0] and left(box) == {folders.ASIDE: 2}


@pytest.mark.parametrize(
    "change", [{"charged": {"score": 10**400}}, {"checks": (CheckResult("large", False, 2.0, "far"),)}, {"low_us": 1e9}]
)
def test_a_verdict_that_contradicts_itself_or_is_no_number_is_none(box, task, change):
    request = SpoolRequest.from_bytes(request_of(box, task, kernel(1)).read_bytes())
    good = replace(scored(kernel(1), Purpose.SCORE), task=task.identity)
    SpoolAnswer(request=request.stem, server="s", evaluation=good).refuse_for(request)
    timed = replace(good.measurements[0], **({} if change.keys() - {"low_us"} else change))
    wrong = replace(good, measurements=(timed,), **({} if "low_us" in change else change))
    with pytest.raises(Malformed):
        SpoolAnswer.from_bytes(SpoolAnswer(request=request.stem, server="s", evaluation=wrong).as_bytes()).refuse_for(
            request
        )


PAIR = PairedComparison("large", CaseKind.SEARCH, Rival.FIRST, "ab" * 32, 1.7, 1.6, 1.8, 40, "faster", 1.9)
ESC = "\x1b[2J"
ABSURD = {
    "seconds": {"gpu_s": 1.7e308},
    "time given back": {"wall_s": -1.0},
    "charges that overflow": {"charged": {"score": 2**63 - 1}},
    "an unknown purpose": {"charged": {"fun": 1}},
    "a count beyond C": {"measured": {"n": 2**40}},
    "a range below zero": {"measured": {"iqr_us": -1.0}},
    "a share below zero": {"measured": {"light_share": -3.0}},
    "a drift": {"measured": {"drift": 1e305}},
    "a speedup that is infinite": {
        "measured": {"median_us": 1e-300, "low_us": 1e-300, "high_us": 1e-300, "baselines_us": {"first": 1e300}},
        "score": None,
    },
    "a time that is next to nothing": {
        "measured": {"median_us": 1e-300, "low_us": 1e-300, "high_us": 1e-300, "baselines_us": {}},
        "score": None,
    },
    "a share whose floor is infinite": {"measured": {"light_share": 1e299}},
    "a name of a baseline": {"measured": {"baselines_us": {ESC: 100.0}}},
    "more pairs than C counts": {"comparisons": (replace(PAIR, pairs=2**40),)},
    "pairs below zero": {"comparisons": (replace(PAIR, pairs=-5),)},
    "an interval backwards": {"comparisons": (replace(PAIR, low=1.8, high=1.6),)},
    "a ratio beside its interval": {"comparisons": (replace(PAIR, ratio=9.0),)},
    "a name of a case": {"comparisons": (replace(PAIR, case=ESC),)},
    "a verdict on the terminal": {"comparisons": (replace(PAIR, verdict=ESC),)},
    "an error that is none": {"checks": (CheckResult("large", True, math.nan),)},
    "an error below zero": {"checks": (CheckResult("large", True, -math.inf),)},
    "a name of a check": {"checks": (CheckResult("large\nlarge: ok", True, 0.1),)},
    "a baseline below zero": {"baselines": {"large": {"eager": -5.0}}},
    "a baseline of nothing": {"baselines": {"large": {"eager": 0.0}}},
    "a name of a rival": {"baselines": {"large": {ESC: 5.0}}},
    "a name of a fault": {"faults": {"large": {ESC: "slow"}}},
}


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD)
def test_a_verdict_that_no_population_holds_is_none(box, task, change):
    request = SpoolRequest.from_bytes(request_of(box, task, kernel(1)).read_bytes())
    good = replace(scored(kernel(1), Purpose.SCORE), task=task.identity, comparisons=(PAIR,))
    told = SpoolAnswer(
        request=request.stem, server="s", evaluation=good, faults={"large": {"slow": f"two\nlines{ESC}"}}
    )
    back = SpoolAnswer.from_bytes(told.as_bytes())
    back.refuse_for(request)
    assert ESC not in back.faults["large"]["slow"]
    of_answer = {name: change[name] for name in ("baselines", "faults") if name in change}
    of_verdict = {name: value for name, value in change.items() if name not in {*of_answer, "measured"}}
    timed = replace(good.measurements[0], **change.get("measured", {}))
    wrong = replace(good, measurements=(timed,), **of_verdict)
    forged = told.model_copy(update={"evaluation": wrong, **of_answer}).as_bytes()
    with pytest.raises(Malformed) as refused:
        SpoolAnswer.from_bytes(forged).refuse_for(request)
    assert ESC not in str(refused.value)


@pytest.mark.parametrize("case", [ESC, "other", None])
def test_a_profile_is_of_the_case_that_was_asked_for_and_commands_no_terminal(task, case):
    asked = {"environment": ENVIRONMENT.key, "task": packed(task), "source": kernel(1), "settings": SETTINGS}
    wanted = ProfileWanted(kinds=(CaseKind.SEARCH,), case="large")
    request = SpoolRequest(what="profile", profile=wanted, **asked)
    good = {"large": CaseProfile((), (ESC,), ESC)}
    back = SpoolAnswer.from_bytes(SpoolAnswer(request=request.stem, server="s", profiles=good).as_bytes())
    back.refuse_for(request)
    assert back.profiles and ESC not in back.profiles["large"].as_text(ESC)
    forged = {} if case is None else {case: CaseProfile(())}
    with pytest.raises(Malformed):
        SpoolAnswer(request=request.stem, server="s", profiles=forged).refuse_for(request)


@pytest.mark.parametrize("data", [b'{"\\ud800": 1e999}', b'{"\\u001b[2J": 1}'])
def test_why_a_file_was_set_aside_is_written_and_printed_whatever_it_holds(box, task, tmp_path, data):
    stem = request_of(box, task, kernel(1)).stem
    SpoolFolder(box).write(folders.VERDICTS, f"{stem}.json", data)
    troubles = []
    with serving(server(box, tmp_path)):
        judge = asking(box, task)
        judge.on_trouble = troubles.append
        assert judge.evaluate(kernel(1), Purpose.SCORE).passed
    assert ESC not in "".join(troubles) + reasons(box) and len(reasons(box)) > 10


def test_errors_that_are_not_finite_travel(task):
    checks = (CheckResult("a", False, math.inf, "far"), CheckResult("b", False, math.nan, "nan"))
    data = SpoolAnswer(request="x", server="s", evaluation=replace(scored(kernel(1), Purpose.PROBE), checks=checks))
    back = SpoolAnswer.from_bytes(data.as_bytes()).evaluation
    assert back is not None and back.checks[0] == checks[0] and math.isnan(back.checks[1].error)


def test_a_lost_folder_is_made_anew_with_what_was_asked(box, task, tmp_path):
    judge = asking(box, task)
    with ThreadPoolExecutor(1) as asked:
        verdict = asked.submit(judge.evaluate, kernel(1), Purpose.SCORE)
        while not (box / folders.REQUESTS).is_dir() or not os.listdir(box / folders.REQUESTS):
            time.sleep(0.01)
        box.rename(tmp_path / "lost")
        with serving(server(box, tmp_path)):
            assert verdict.result(20.0).passed


def carry(here: Path, there: Path, *kinds: str) -> None:
    """As `rsync -a`: adds and overwrites, removes nothing; each file appears whole."""
    for kind in kinds:
        (there / kind).mkdir(parents=True, exist_ok=True)
        for path in (here / kind).glob("[!.]*"):  # what is still being written comes next time
            hidden = there / kind / f".{path.name}.tmp"
            try:
                shutil.copy2(path, hidden)
                hidden.rename(there / kind / path.name)
            except FileNotFoundError:  # it went away meanwhile, perhaps while it was copied
                hidden.unlink(missing_ok=True)


@pytest.mark.parametrize("whole", [False, True])
def test_a_folder_that_is_carried_there_and_back_counts_each_once(box, task, tmp_path, whole):
    """`whole`: all of it is carried both ways, also what the other side has moved on since."""
    there, judged = tmp_path / "there", []
    for place in (box, there):
        SpoolFolder(place).prepare()
    every = (folders.REQUESTS, folders.CLAIMED, folders.VERDICTS, folders.SERVERS, folders.ASIDE)
    with serving(server(there, tmp_path, before=lambda source: judged.append(source.sha256))):
        judge = asking(box, task)
        with ThreadPoolExecutor(6) as lanes:
            asked = [lanes.submit(judge.evaluate, kernel(number), Purpose.SCORE) for number in range(60)]
            while not all(one.done() for one in asked):
                carry(box, there, *(every if whole else (folders.REQUESTS,)))
                time.sleep(0.05)
                carry(there, box, *(every if whole else (folders.VERDICTS, folders.SERVERS)))
            found = [one.result() for one in asked]
        carry(box, there, folders.REQUESTS)
        until, looks = time.monotonic() + 10.0, 0
        while looks < 5 and time.monotonic() < until:  # what came again is cleared away, not judged
            looks = 0 if left(there) else looks + 1  # a file that is moved while folders are listed is in none
            time.sleep(0.05)
    assert sum(sum(one.charged.values()) for one in found) == 60 and all(one.passed for one in found)
    assert len(set(judged)) == len(judged) == 60
    assert left(there) == {}


# ---- environments ---------------------------------------------------------------------------------------------------


def announced(box: Path, *environments) -> None:
    SpoolFolder(box).prepare()
    for number, one in enumerate(environments):
        told = Announcement(server=f"s-{number}", beat=1, environment=one)
        SpoolFolder(box).write(folders.SERVERS, f"s-{number}.json", told.as_bytes())


def test_a_search_is_bound_to_one_environment(box, task):
    with pytest.raises(UserError, match="no judge has announced itself"):
        open_spool_judge(box, task, SETTINGS, wait=False)
    announced(box, ENVIRONMENT)
    assert open_spool_judge(box, task, SETTINGS).environment == ENVIRONMENT
    with pytest.raises(UserError, match=rf"{OTHER.key}.*{ENVIRONMENT.key}.*--start-from"):
        open_spool_judge(box, task, SETTINGS, known=OTHER)
    announced(box, ENVIRONMENT, OTHER)
    with pytest.raises(UserError, match=r"--set judge\.environment=KEY") as told:
        open_spool_judge(box, task, SETTINGS)
    assert ENVIRONMENT.key in str(told.value) and OTHER.key in str(told.value)
    assert open_spool_judge(box, task, SETTINGS, choice=OTHER.key).environment == OTHER
    assert open_spool_judge(box, task, SETTINGS, known=OTHER).environment == OTHER
    with pytest.raises(UserError, match=r"no judge of .* is 'H100'"):
        open_spool_judge(box, task, SETTINGS, choice="H100")


def test_a_server_leaves_other_environments_alone(box, task, tmp_path):
    judge = asking(box, task, OTHER)
    one = server(box, tmp_path / "a")
    with ThreadPoolExecutor(1) as asked, serving(one):
        verdict = asked.submit(judge.evaluate, kernel(1), Purpose.SCORE)
        while not one.served.elsewhere:
            time.sleep(0.01)
        assert not verdict.done() and not one.served.judged
        with serving(server(box, tmp_path / "b", environment=OTHER)):
            assert verdict.result(20.0).environment == OTHER


# ---- tasks travel ---------------------------------------------------------------------------------------------------

TASK = '''"""Twice."""
import numbers_of_mine
SEED = "kernels/seed.py"
CASES = {"check": [{"n": numbers_of_mine.SMALL}], "search": [{"n": 64}]}


def inputs(case, generator, device):
    import torch

    return (torch.randn(case["n"], generator=generator, device=device),)


def reference(x):
    return x * 2
'''


def test_a_task_file_travels_with_what_it_needs_and_runs_only_as_what_it_is(tmp_path):
    home = tmp_path / "here"
    (home / "kernels").mkdir(parents=True)
    (home / "twice.py").write_text(TASK)
    (home / "numbers_of_mine.py").write_text("SMALL = 7\n")
    (home / "kernels" / "seed.py").write_text("def run(x): ...\n")
    sent = packed(load(home / "twice.py"))
    assert set(sent.files) == {"numbers_of_mine.py", "kernels/seed.py"}
    shutil.rmtree(home)
    sys.modules.pop("numbers_of_mine")
    there = unpacked(TaskText.model_validate_json(sent.model_dump_json(), strict=True), tmp_path / "there")
    assert (there.name, there.identity) == ("twice", sent.identity)
    assert there.seed is not None and there.seed.text == "def run(x): ...\n"
    changed = sent.model_copy(update={"text": sent.text + f"open({str(tmp_path / 'ran')!r}, 'w')\n"})
    with pytest.raises(UserError, match="not the one whose identity"):
        unpacked(changed, tmp_path / "other")
    assert not (tmp_path / "ran").exists()
    for name in ("../x.py", "/etc/x.py", ".hidden", "a/../../x.py", "a//b.py", ""):
        with pytest.raises(ValueError, match="files"):
            TaskText(name="twice", identity=sent.identity, text="", files={name: "x"})


def test_a_task_that_is_unpacked_again_is_never_seen_in_part(tmp_path):
    (tmp_path / "alone.py").write_text(TASK.replace("numbers_of_mine.SMALL", "7").replace("import numbers_of_mine\n", "").replace('SEED = "kernels/seed.py"\n', ""))  # fmt: skip
    sent = packed(load(tmp_path / "alone.py"))
    before = unpacked(sent, tmp_path / "there").path.stat()
    assert unpacked(sent, tmp_path / "there").path.stat().st_mtime_ns == before.st_mtime_ns
    with ThreadPoolExecutor(4) as threads:  # of judges with other settings
        for name in ("first", "second", "third"):
            list(threads.map(lambda _, name=name: unpacked(sent, tmp_path / name), range(40)))


def test_a_task_that_was_narrowed_to_a_case_travels_as_such(tmp_path, task):
    (tmp_path / "twice.py").write_text(TASK.replace('[{"n": 64}]', '[{"n": 64}, {"n": 32}]').replace("numbers_of_mine.SMALL", "7")
                                       .replace("import numbers_of_mine\n", "").replace('SEED = "kernels/seed.py"\n', ""))  # fmt: skip
    for one in (load(tmp_path / "twice.py"), task):
        for case in one.cases_of(CaseKind.SEARCH):
            sent = packed(one.narrowed(case.name))
            there = unpacked(TaskText.model_validate_json(sent.model_dump_json(), strict=True), tmp_path / "there")
            assert there.cases_of(CaseKind.SEARCH) == (case,)
            assert (there.name, there.identity) == (f"{one.name}@{case.name}", one.identity)


def test_a_seed_that_cannot_travel_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "seed.py").write_text("def run(x): ...\n")
    home = tmp_path / "here"
    home.mkdir()
    text = TASK.replace("kernels/seed.py", "../seed.py").replace("import numbers_of_mine\n", "")
    (home / "twice.py").write_text(text.replace("numbers_of_mine.SMALL", "7"))
    with pytest.raises(UserError, match="Put it there"):
        packed(load(home / "twice.py"))


def test_a_request_says_all_that_its_verdict_depends_on(box, task):
    request = SpoolRequest.from_bytes(request_of(box, task, kernel(1)).read_bytes())
    others = [
        {"source": kernel(2)}, {"what": "probe"}, {"remeasure": True}, {"against": kernel(2)}, {"effort": 2},
        {"turn": 1}, {"environment": OTHER.key}, {"settings": JudgeSettings(tune_plans=3)},
        {"task": packed(replace_identity(task))},
    ]  # fmt: skip
    stems = {request.model_copy(update=one).stem for one in others}
    assert len(stems | {request.stem}) == len(others) + 1
    with pytest.raises(Malformed):
        SpoolRequest.from_bytes(request.model_copy(update={"effort": 10**6}).as_bytes())
