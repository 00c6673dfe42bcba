"""Confined children: none outlives its judge, what they write and answer is bounded, and they get at nothing else.

Each test is run where namespaces have to do all the work, and where there are none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.namespaces import cap_processes
from evo_kernel.fitness.sandbox.zygote import JobResult, MalformedReply
from tests.support.wild import KINDS, Wild, marked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    if request.param == "namespaces" and subprocess.run(["unshare", "-Ur", "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    return request.param


@pytest.fixture
def children(kind) -> Iterator[Wild]:
    made = Wild(kind, f"test{time.monotonic_ns()}")
    yield made
    made.close()


def _left(mark: str, of: set[int], within_s: float = 2.0) -> set[int]:
    """Which of these processes are still there then."""
    end = time.monotonic() + within_s
    while (left := of & set(marked(mark))) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def _settled(mark: str, usual: int, within_s: float = 2.0) -> int:
    """How many there are when no more than usual are left, or then."""
    end = time.monotonic() + within_s
    while (count := len(marked(mark))) > usual and time.monotonic() < end:
        time.sleep(0.02)
    return count


@pytest.mark.parametrize("killed", ["judge", "supervisor", "zygote", "closed"])
def test_nothing_outlives_its_judge(kind, killed, tmp_path) -> None:
    if (kind, killed) == ("bare", "supervisor"):
        pytest.skip("without namespaces nobody is left to clear up: no child can reach a supervisor")
    mark = f"{kind}{killed}{time.monotonic_ns()}"
    command = [
        sys.executable,
        "-c",
        "import sys; from tests.support import wild; wild.judge(*sys.argv[1:])",
        kind,
        mark,
    ]
    judge = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert judge.stdout is not None and judge.stdin is not None
    supervisor = int(judge.stdout.readline())
    before = set(marked(mark))
    assert len(before) >= 6  # the supervisor, the zygote, the child and three that it left behind
    if killed == "closed":
        judge.stdin.close()
    else:
        zygotes = [pid for pid in before if _parent(pid) == supervisor]
        os.kill({"judge": judge.pid, "supervisor": supervisor, "zygote": zygotes[0]}[killed], signal.SIGKILL)
    try:
        assert not _left(mark, before)
    finally:
        judge.kill()
        judge.wait()
        judge.stdout.close()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_a_child_leaves_ends_with_its_job(children) -> None:
    children.start()
    mark = children.mark
    assert children.do("hide and go", SandboxLimits(may_fork=True)).outcome == "done"
    usual = 2  # the supervisor and the zygote
    assert _settled(mark, usual) == usual
    late = children.do("hide", SandboxLimits(deadline_s=1.0, may_fork=True))
    assert late.outcome == "timeout"
    assert _settled(mark, usual) == usual


@pytest.mark.parametrize("deed", ["fill one", "fill many", "fill deleted", "many files"])
def test_what_a_child_writes_is_bounded(children, deed) -> None:
    began = time.monotonic()
    found = children.do(deed, SandboxLimits(deadline_s=20.0, disk_bytes=32 << 20, answer_bytes=1 << 20, open_files=64))
    told = found.data or b""
    assert found.outcome == "disk" or b"No space left" in told or b"too large" in told, found
    assert time.monotonic() - began < 30.0
    assert children.do("nothing").outcome == "done"


def test_prints_go_nowhere_and_deep_folders_are_removed(children) -> None:
    assert b"printed" in children.do("print").data
    assert children.do("deep").outcome == "done"
    assert sum(path.stat().st_size for path in children.root.iterdir() if path.is_file()) < 1 << 20
    assert not [path for path in children.root.iterdir() if path.is_dir()]


@pytest.mark.parametrize(("deed", "outcome"), [("long answer", "answer"), ("endless answer", "memory")])
def test_long_answers_are_not_read(children, deed, outcome) -> None:
    began = time.monotonic()
    found = children.do(deed)
    assert (found.outcome, found.data) == (outcome, None)
    assert time.monotonic() - began < 30.0


def test_a_group_is_no_way_to_the_zygote(children) -> None:
    children.start()
    before = children.pid
    # Process 1 of a namespace is deaf to it, others are denied it.
    children.do("kill group", SandboxLimits(may_fork=True))
    assert children.do("nothing").outcome == "done" and children.pid == before


def test_a_child_writes_nowhere_else(children) -> None:
    assert b'"said": ""' in children.do("elsewhere").data


def test_a_child_sees_no_other_process(children) -> None:
    found = children.do("processes")
    assert found.outcome == "crash" or b'"said": "1"' in found.data, found  # Landlock denies the list, or it is short


def test_a_child_gets_what_it_was_given(children) -> None:
    found = children.do("own")
    assert b'"said": "given"' in found.data and b'"files": ["given.bin"]' in found.data


def test_new_memory_of_a_child_comes_in_small_pages(children) -> None:
    if "THP_enabled" not in Path("/proc/self/status").read_text():
        pytest.skip("no huge pages here")
    assert b'"said": "0"' in children.do("pages").data


def test_calls_that_matter_are_denied() -> None:
    children = Wild("bare")
    try:
        found = children.do("calls", SandboxLimits(may_fork=True))
        assert b'"said": ""' in found.data, found
        assert "seccomp" in found.confinement and "namespaces" not in found.confinement
    finally:
        children.close()


def test_the_walls_are_told_by_the_server(children, kind) -> None:
    confinement = children.do("nothing").confinement.split("+")
    assert ("namespaces" in confinement) == (kind == "namespaces")
    assert ("quota" in confinement) == (kind == "bare")
    assert confinement[-1] == "rlimits"


class _Form(BaseModel):
    count: int
    time_us: float


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"[" + b"[]," * 5_000_000 + b"0]", b'{"count": "1", "time_us": 1.0}', b'{"count": 1.5, "time_us": 1.0}', b'{"count": true, "time_us": 1}',
        b"[" * 100_000, b'{"count": 1' + b"0" * 10_000 + b', "time_us": 1.0}', b"\xff\xfe", b'{"count": 1, "time_us": "x',
    ],
)  # fmt: skip
def test_an_answer_that_is_no_such_thing_is_malformed(data) -> None:
    with pytest.raises(MalformedReply):
        JobResult("done", data).read(_Form)


def test_the_number_of_processes_is_the_machines_before_linux_6_14(tmp_path) -> None:
    limit = tmp_path / "pid_max"
    limit.write_text("999")
    cap_processes(301, str(limit), release=(6, 8))
    assert limit.read_text() == "999"
    cap_processes(301, str(limit), release=(6, 14))
    assert limit.read_text() == "301"
