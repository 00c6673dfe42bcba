"""`suite`: real searches of tiny tasks in children, what is remembered of them, and its figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest
from click.testing import CliRunner

from evo_kernel.app.suite import lanes, runs, search
from evo_kernel.app.suite.lanes import Lane, OrderEnd, lanes_of
from evo_kernel.app.suite.runs import SuiteRun, alone_in
from evo_kernel.app.suite.search import SearchOptions, SuiteTask, SuiteWorker, answer_of, ask_harness, tasks_of
from evo_kernel.cli.suite import suite
from evo_kernel.errors import UserError
from evo_kernel.observe.document import html, markdown
from evo_kernel.observe.suites import (
    CORRECT,
    FASTEST,
    NONE,
    WRONG,
    Stock,
    SuiteRow,
    disagreements,
    figures,
    report,
    stock_of,
)
from evo_kernel.types import Source
from tests.support.benchmark import checkout
from tests.support.commands import evo_main
from tests.support.fake_harness import CRASHES, HANGS, add_harness
from tests.support.scripts import script


@pytest.fixture
def warm(monkeypatch) -> None:
    """A suite's processes come from one that has imported torch."""
    monkeypatch.setattr(lanes, "PROGRAM", script(*lanes.PROGRAM[1:])[1:])
    monkeypatch.setattr(search, "PYTHON", script(*search.PYTHON[2:]))


@pytest.mark.usefixtures("warm")
def test_a_suite_searches_goes_on_after_a_failure_asks_the_harness_and_is_done_once(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout")
    add_harness(root)
    problem = root / "KernelBench/level1/1_Softmax.py"
    problem.write_text(problem.read_text().replace("dim = 32768", "dim = 256"))
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "mine.txt").write_text(f"# two\n{tmp_path}/broken.py\nkernelbench:{root}/level1/1  # softmax\n")
    words = ("suite", f"{tmp_path}/mine.txt", "--to", f"{tmp_path}/out", "--evaluations", "1", "--device", "cpu",
             "--set", "judge.tune_plans=0", "--set", "first=auto", "--json")  # fmt: skip
    ended = evo_main(*words)
    assert ended.returncode == 1, ended.stderr
    broken, softmax = json.loads(ended.stdout)["tasks"]
    assert broken["status"] == "failed" and "nothing_of_this_name" in broken["reason"]
    assert softmax["status"] in ("passed", "confirmed") and softmax["first"] == "kernels"
    assert softmax["gain"] >= 1.0 and softmax["own_share"] == 1.0 and softmax["speedup"] is None  # modeled
    assert softmax["stock"]["verdict"] == "correct" and softmax["stock"]["sizes"] == "small", softmax
    assert softmax["stock"]["scaled"] == {"x3": True, "x0.01": True, "x-1": True}
    solution = tmp_path / "out/solutions/level_1_problem_1_sample_0_kernel.py"
    assert "class ModelNew" in solution.read_text()
    module = json.loads(next((tmp_path / "out/logs").glob("*.module.json")).read_text())  # of the search's own process
    assert module["text"].strip() in solution.read_text()
    assert "modeled for an H200 (sm\\_90)" in (tmp_path / "out/report.md").read_text()
    assert "Kernels by each protocol" in (tmp_path / "out/report.html").read_text()
    before = (tmp_path / "out/results.jsonl").read_text()
    assert len(before.splitlines()) == 2
    again = evo_main(*words)
    assert json.loads(again.stdout)["tasks"] == [broken, softmax]
    assert (tmp_path / "out/results.jsonl").read_text() == before


class Scripted:
    """A worker that only notes what it is asked to do."""

    asked: ClassVar[list[tuple]] = []
    ends: ClassVar[dict[str, tuple[str, bool]]] = {"b": ("failed", False)}  # label -> status, whether it was cut short

    following: ClassVar[dict[str, str]] = {}

    def __init__(self, lane: Lane, folder: Path, options: SearchOptions, halt: threading.Event) -> None: ...

    def close(self) -> None: ...

    def search(
        self, one: SuiteTask, minutes: float, evaluations: int | None, following: SuiteTask | None = None
    ) -> SuiteRow:
        self.asked.append((one.label, minutes, evaluations))
        self.following[one.label] = following.label if following is not None else ""
        status, cut = self.ends.get(one.label, ("passed", False))
        return SuiteRow(one.spec, one.label, one.group, status, evaluations=9, cut=cut)

    def ask(self, one: SuiteTask, row: SuiteRow, stock: bool = True) -> SuiteRow:
        if row.stock is None and row.correct:
            self.asked.append((one.label, "stock" if stock else "written"))
            row = replace(row, stock=Stock(CORRECT, kernel="k")) if stock else row
        return row


@pytest.fixture
def asked(monkeypatch) -> list[tuple]:
    monkeypatch.setattr(runs, "SuiteWorker", Scripted)
    monkeypatch.setattr(Scripted, "asked", [])
    return Scripted.asked


def test_what_is_done_follows_from_the_lines_of_the_results(tmp_path: Path, asked) -> None:
    chosen = [SuiteTask("a.py", "a", "g"), SuiteTask("b.py", "b", "g")]

    def again(minutes: float, evaluations: int | None, *, retry: bool = False) -> list[tuple]:
        asked.clear()
        list(SuiteRun(tmp_path, chosen, minutes, evaluations, retry=retry, lanes=[Lane(), Lane()]).rows())
        return sorted(asked)

    assert again(4, 10) == [("a", 4, 10), ("b", 4, 10)]
    assert again(4, 10) == []
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"task": "a.py", "minu')  # killed while it wrote
    assert again(4, 10, retry=True) == [("b", 4, 10)]  # what failed is left in peace else
    before = (tmp_path / "results.jsonl").read_text()
    assert before.count('"minu\n{"task": "b.py"') == 1  # the unfinished line takes none along
    assert again(8, 10) == [("a", 8, 10)]
    assert again(8, None) == [("a", 8, None)]


def test_a_kernel_without_a_stock_verdict_gets_one_and_is_not_searched_again(tmp_path: Path, asked) -> None:
    one = SuiteTask("kernelbench:somewhere/level1/1", "level1/1", "level1")
    list(SuiteRun(tmp_path, [one], 1, stock=False).rows())
    assert asked == [("level1/1", 1, None), ("level1/1", "written")]
    asked.clear()
    run = SuiteRun(tmp_path, [one], 1)
    list(run.rows())
    assert asked == [("level1/1", "stock")]
    (row,) = run.found()
    assert row.stock == Stock(CORRECT, kernel="k")
    asked.clear()
    list(SuiteRun(tmp_path, [one], 1).rows())
    assert asked == []


def test_what_the_harness_calls_wrong_in_tf32_is_searched_in_ieee_float32(tmp_path: Path, asked, monkeypatch) -> None:
    one = SuiteTask("kernelbench:somewhere/level1/1@mixed@tf32", "level1/1", "level1@tf32")

    def ask(self: Scripted, task: SuiteTask, row: SuiteRow, stock: bool = True) -> SuiteRow:
        asked.append((task.spec, "stock"))
        return replace(row, stock=Stock(WRONG if "@tf32" in task.spec else exact, "off", kernel=task.spec))

    monkeypatch.setattr(Scripted, "ask", ask)
    exact, ieee, searched = WRONG, "kernelbench:somewhere/level1/1@mixed", ("level1/1", 1, None)
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    wrong.mkdir()
    right.mkdir()
    assert [(row.task, row.reason) for row in SuiteRun(wrong, [one], 1).rows()] == [(one.spec, "")]
    assert asked == [searched, (one.spec, "stock"), searched, (ieee, "stock")]
    exact = CORRECT
    for minutes, before in ((1, [searched, (one.spec, "stock")]), (2, [])):  # a resume goes on with what was right
        asked.clear()
        run = SuiteRun(right, [one], minutes)
        assert [(row.task, row.label, row.reason) for row in run.rows()] == [(ieee, "level1/1", "in IEEE float32")]
        assert asked == [*before, ("level1/1", minutes, None), (ieee, "stock")]
        assert len(run.found()) == 1 and not run.others()
    assert one.in_ieee().population != one.population


def test_what_was_cut_short_is_gone_on_with_by_the_same_command(tmp_path: Path, asked, monkeypatch) -> None:
    one = SuiteTask("kernelbench:somewhere/level1/1", "level1/1", "level1")

    def again(status: str, cut: bool) -> list[tuple]:
        asked.clear()
        monkeypatch.setattr(Scripted, "ends", {one.label: (status, cut)})
        list(SuiteRun(tmp_path, [one], 0.5).rows())
        return list(asked)

    assert again("passed", True) == [(one.label, 0.5, None), (one.label, "stock")]
    assert again("confirmed", False) == [(one.label, 0.5, None)]
    assert again("confirmed", False) == []


def test_one_suite_a_folder_and_its_report_keeps_what_it_knows_of_tasks_that_are_not_chosen(
    tmp_path: Path, asked
) -> None:
    chosen = [SuiteTask("a.py", "a", "g"), SuiteTask("b.py", "b", "g")]
    own, refused = tmp_path / "of/its/own", rf"process {os.getpid()} on .*--to"
    with alone_in(own), pytest.raises(UserError, match=refused), alone_in(own):
        raise AssertionError("two at once")
    with alone_in(tmp_path):
        list(SuiteRun(tmp_path, chosen, 4).rows())
    with alone_in(tmp_path):
        narrower = SuiteRun(tmp_path, [chosen[0], SuiteTask("c.py", "c", "g")], 4, retry=True)
    assert [row.label for row in narrower.others()] == ["b"]
    (tmp_path / "c.db").touch()
    assert narrower.found()[1].reason.startswith("under way when the command ended")


def test_a_result_of_before_says_that_it_was_cut_short_by_being_unconfirmed(tmp_path: Path, asked) -> None:
    row = {name: value for name, value in vars(SuiteRow("a.py", "a", "g", "passed")).items() if name != "cut"}
    line = {"task": "a.py", "minutes": 4, "evaluations": None, "row": row}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    for expected in ([("a", 4, None)], []):
        asked.clear()
        list(SuiteRun(tmp_path, [SuiteTask("a.py", "a", "g")], 4).rows())
        assert asked == expected


@pytest.mark.parametrize(
    ("ended", "passed", "cut", "status", "reason"),
    [
        (OrderEnd(0, '{"cause": "budget"}', ""), True, False, "passed", ""),
        (OrderEnd(-9, "", "", late=True, after_s=780), False, False, "failed", "ended after 780 s, long beyond"),
        (OrderEnd(1, "", "error: no such thing"), False, False, "failed", "no such thing"),
        (OrderEnd(137, "", "score: modeled"), False, False, "failed", "was killed: the machine may have run out"),
        (OrderEnd(1, "", "error: no such thing"), True, True, "passed", "did not end well: no such thing"),
    ],
)
def test_how_a_search_ended_says_whether_there_is_more_to_do(
    tmp_path: Path, monkeypatch, ended: OrderEnd, passed: bool, cut: bool, status: str, reason: str
) -> None:
    one, population = SuiteTask("a.py", "a", "g"), tmp_path / "a.db"
    population.touch()
    monkeypatch.setattr(
        search, "row_of", lambda row, path: replace(row, status="passed" if passed else "failed", reason="")
    )
    worker = SuiteWorker(Lane(), tmp_path, SearchOptions(device="cpu"), threading.Event())
    row = worker.row(one, population, ended)
    assert row is not None and (row.cut, row.status) == (cut, status) and reason in row.reason


@pytest.mark.parametrize(("width", "following"), [(1, "bcd "), (2, "cd  "), (3, "d   ")])
def test_a_worker_is_told_what_it_will_search_next(tmp_path: Path, asked, width: int, following: str) -> None:
    chosen = [SuiteTask(f"{label}.py", label, "g") for label in "abcd"]
    list(SuiteRun(tmp_path, chosen, 4, lanes=[Lane()] * width).rows())
    assert [Scripted.following[label] for label in "abcd"] == [word.strip() for word in following]


WAITS = """
import json, os, sys
line = os.fdopen(int(sys.argv[1])).readline()
if line:
    order = json.loads(line)
    with open(order["output"][0], "a") as file:
        print(json.dumps({"pid": os.getpid(), "cause": "budget", "words": order["words"]}), file=file)
"""


@pytest.mark.parametrize("place", ["local", "spool:/shared/box"])
def test_a_search_is_told_who_judges(tmp_path: Path, monkeypatch, place: str) -> None:
    """Where that is somebody else, it starts nothing on a GPU of this machine."""
    monkeypatch.setattr(lanes, "PROGRAM", ("-c", WAITS.replace("os.getpid()", "sys.argv[2]")))
    options = SearchOptions(device="cuda" if place == "local" else "auto", judge_at=place)
    worker = SuiteWorker(Lane(), tmp_path, options, threading.Event())
    worker.search(SuiteTask("a.py", "a", "g"), 1, 3)
    said = json.loads((tmp_path / "logs/a.out").read_text())
    told = ["--device", "cuda"] if place == "local" else ["--judge", place]
    assert [word for word in said["words"] if word in (*told, "--judge", "--device")] == told
    assert said["pid"] == ("cuda" if place == "local" else "cpu")


def test_the_next_search_waits_for_its_command_and_nobody_waits_for_ever(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lanes, "PROGRAM", ("-c", WAITS))
    one, two, three = (SuiteTask(f"{label}.py", label, "g") for label in "abc")
    worker = SuiteWorker(Lane(), tmp_path, SearchOptions(device="cpu"), threading.Event())

    def search(task: SuiteTask, following: SuiteTask | None) -> int:
        worker.search(task, 1, 3, following)
        said = json.loads((tmp_path / f"logs/{task.label}.out").read_text())
        assert said["words"][:2] == ["run", task.spec]
        return said["pid"]

    others = set(psutil.Process().children())

    def waiting() -> tuple[int, int]:
        """Its supervisor and itself."""
        (supervisor,) = set(psutil.Process().children()) - others
        while not (children := supervisor.children()):
            time.sleep(0.01)
        return supervisor.pid, children[0].pid

    search(one, two)
    _, early = waiting()
    assert search(two, three) == early
    supervisor, early = waiting()
    os.kill(early, signal.SIGKILL)
    assert gone(supervisor) and search(three, one) != early  # another is started
    _, early = waiting()
    worker.close()
    assert gone(early) and set(psutil.Process().children()) <= others


def test_a_search_that_gives_up_threads_writes_its_solution_too(tmp_path) -> None:
    program = """
import sys, types
from evo_kernel.cli import waiting
from evo_kernel.processes import CutOff
def main():
    print("searched", flush=True)
    raise CutOff(1)
def write_best(spec):
    print("written", spec, flush=True)
waiting.main, waiting.prepare = main, lambda *given: None
sys.modules["evo_kernel.app.suite.harnesses"] = types.SimpleNamespace(write_best=write_best)
waiting.wait()
"""
    files = [tmp_path / "out", tmp_path / "err"]
    for file in files:
        file.touch()
    order = {"words": ["run"], "output": [str(file) for file in files], "solution": {"spec": "level2/1"}}
    command = [sys.executable, "-c", program, "0", "cpu", "softmax"]
    ended = subprocess.run(command, check=False, input=json.dumps(order) + "\n", text=True, timeout=60)
    assert ended.returncode == 1
    assert files[0].read_text() == "searched\nwritten level2/1\n", files[1].read_text()


def test_lanes_divide_the_cores(monkeypatch) -> None:
    assert lanes_of(None, "cpu") == [Lane()]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("evo_kernel.app.suite.lanes.usable_cores", lambda: 8)
    assert lanes_of("2", "cpu") == [Lane("", (0, 1, 2, 3)), Lane("", (4, 5, 6, 7))]
    assert len(lanes_of("all", "cpu")) == 4
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert lanes_of("all", "auto") == [Lane("3", (0, 1, 2, 3)), Lane("5", (4, 5, 6, 7))]
    assert lanes_of("2", "cuda")[1].environment()["CUDA_VISIBLE_DEVICES"] == "5"
    assert [lane.gpu for lane in lanes_of("3", "cuda")] == ["3", "5", "3"]  # two take turns
    for wrong in ("9", "none", "0"):
        with pytest.raises(UserError, match=f"--gpus {wrong}"):
            lanes_of(wrong, "cuda")
    with pytest.raises(UserError, match="--gpus 9"):
        lanes_of("9", "cpu")


def order(root: Path, ask: bool = True) -> dict:
    kernel, module = Source("def run(x):\n    return x\n"), root / "module.json"
    if ask:  # writing one takes seconds
        module.write_text(json.dumps({"kernel": kernel.sha256, "text": kernel.text}))
    return {
        "spec": f"kernelbench:{root}/level1/1", "kernel": kernel.text, "folder": str(root / "out"), "device": "cpu",
        "ask": ask, "module": str(module) if ask else "",
    }  # fmt: skip


def test_a_harness_that_crashes_or_hangs_leaves_nobody(tmp_path: Path, request) -> None:
    crashes, hangs = checkout(tmp_path / "crashes"), checkout(tmp_path / "hangs")
    crashed_package, package = add_harness(crashes, CRASHES), add_harness(hangs, HANGS)
    halt, ended = threading.Event(), dict[str, OrderEnd]()

    def ask(name: str, what: dict) -> None:
        ended[name] = ask_harness(what, Lane(), tmp_path / name, halt, 200.0)

    hanging = threading.Thread(target=ask, args=("hung", order(hangs)))
    hanging.start()
    ask("crashed", order(crashes))
    assert ended["crashed"].code == 7 and not ended["crashed"].out
    assert gone(int((crashed_package / "left").read_text()))  # in a session of its own, its parent ended before it
    assert answer_of(ended["crashed"], "k") == Stock(
        NONE, "its harness ended early: its process ended with code 7 and said nothing", "k",
        seconds=ended["crashed"].after_s,
    )  # fmt: skip
    request.getfixturevalue("warm")  # this one leaves nothing
    ask("written", order(crashes, ask=False))
    assert ended["written"].code == 0 and not answer_of(ended["written"], "k").reason  # without asking
    (path,) = (crashes / "out").iterdir()
    assert path.name == "level_1_problem_1_sample_0_kernel.py" and "class ModelNew" in path.read_text()
    sleeper = wait_for(package / "left")
    halt.set()
    hanging.join(60)
    assert ended["hung"].code > 128 and gone(sleeper) and not ended["hung"].late


def wait_for(path: Path) -> int:
    """The process that a harness which hangs has started."""
    end = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    return int(path.read_text())


def gone(pid: int) -> bool:
    """Whether a process ends within seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_protocols_are_told_side_by_side_and_where_they_disagree() -> None:
    def row(label: str, stock: Stock | None, us: float = 10.0) -> SuiteRow:
        return SuiteRow(label, label, "level1", "passed", measured=True, first_us=80.0, best_us=us,
                        baselines_us={"eager": 40.0}, stock=stock)  # fmt: skip

    every = {"x3": True, "x0.01": True, "x-1": True}
    rows = [
        row("all agree", Stock(CORRECT, us=20.0, eager_us=60.0, tf32_us=10.0, scaled=every)),
        row("not scaled", Stock(CORRECT, us=20.0, eager_us=10.0, tf32_us=10.0, scaled=every | {"x3": False})),
        row("refused", Stock(WRONG, "Output mismatch")),
        row("late", Stock(NONE, "its harness took longer than 120 s and was ended")),
        SuiteRow("none", "none", "level1", "nothing passed"),
    ]

    def by_protocol(rows: list[SuiteRow]) -> list:
        found = {one.baseline: one for one in figures(rows) if not one.own_only}
        return [found["eager"], found["stock, eager"], found["stock, scaled inputs, TF32 eager"]]

    judge, stock, scaled = by_protocol(rows)
    assert (judge.correct, judge.fast_2, judge.undecided) == (0.8, 0.8, 0)
    assert (stock.correct, stock.fast_1, stock.mean_all, stock.undecided) == (0.4, 0.2, pytest.approx(0.7), 1)
    assert (scaled.correct, scaled.fast_1, scaled.geomean_correct) == (0.2, 0.0, pytest.approx(0.5))
    assert list(disagreements(rows).values()) == [["refused"], ["not scaled"], ["not scaled"]]
    later = [*rows, row("later", None)]  # there was no time to ask
    judge, stock, _ = by_protocol(later)
    assert (judge.correct, judge.not_asked) == (pytest.approx(5 / 6), 0)
    assert (stock.correct, stock.not_asked, stock.undecided) == (0.4, 1, 1)
    written = markdown(report("S", rows))
    assert "| level1 | 5 | stock, eager | any | 40 % | 20 % | 20 % | 0.70x | 1.22x | 8.00x | 0 | 1 |" in written
    assert "The protocols disagree about 2 of the 3 kernels that all of them judged." in written
    assert "| late | stock: its harness took longer than 120 s and was ended |" in written
    assert "| not scaled | passed | 4.00x | correct | 20.0 | 0.50x | wrong at x3 | - |" in written
    alone = [row("a", None)]
    assert {one.baseline for one in figures(alone)} == {FASTEST, "eager"}
    assert "by each protocol" not in markdown(report("S", alone))
    assert stock_of(json.loads(json.dumps(vars(rows[0].stock)))) == rows[0].stock


def test_figures_count_every_problem_and_own_kernels_apart() -> None:
    def row(label: str, best_us: float | None, **more) -> SuiteRow:
        status = "failed" if best_us is None else "passed"
        baselines = {} if best_us is None else {"eager": 40.0, "compiled": 20.0}
        return SuiteRow(label, label, "level1", status, measured=True, first_us=80.0, best_us=best_us,
                        baselines_us=baselines, **more)  # fmt: skip

    rows = [
        row("fast", 5.0), row("mixed", 10.0, own_us=50.0, torch_operations=("mm",)),
        row("library", 80.0, torch_operations=("mm",)), row("none", None),
    ]  # fmt: skip
    found = {(one.baseline, one.own_only): one for one in figures(rows)}
    fastest = found[FASTEST, False]
    assert (fastest.correct, fastest.fast_1, fastest.fast_2) == (0.75, 0.5, 0.25)
    assert fastest.mean_all == pytest.approx((4 + 2 + 0.25) / 4)
    assert fastest.geomean_correct == pytest.approx((4 * 2 * 0.25) ** (1 / 3))
    assert (found["eager", False].fast_2, found["eager", True].correct) == (0.5, 0.5)
    own = found["eager", True]  # with the kernel behind the best where that calls torch
    assert (own.fast_1, own.mean_all) == (0.25, pytest.approx((8 + 0.8) / 4))
    rows.append(SuiteRow("x", "a|b", "level1", "failed", reason="no <kernel> | of its own"))
    blocks = report("Suite <s>", rows)
    written, page = markdown(blocks), html("Suite <s>", blocks)
    assert "| level1 | 5 | fastest | any | 60 % | 40 % | 20 % | 1.25x | 1.26x | 5.04x |" in written
    assert "| a\\|b | no &lt;kernel&gt; \\| of its own |" in written
    assert "<h1>Suite &lt;s&gt;</h1>" in page and "<td>no &lt;kernel&gt; | of its own</td>" in page


def test_the_own_kernel_is_the_fastest_that_calls_no_torch_operation() -> None:
    def judged(us: float, **details: float) -> SimpleNamespace:
        measured = [SimpleNamespace(median_us=us, details=details), SimpleNamespace(median_us=4 * us, details={})]
        return SimpleNamespace(evaluation=SimpleNamespace(measurements=measured))

    known = {7: judged(1.0, **{"aten.mm.out": 1.0}), 2: judged(3.0), 5: judged(4.0)}
    reader = SimpleNamespace(leaders=lambda: known, relative=known.__getitem__)
    assert search.own_kernel_us(reader) == pytest.approx(6.0)
    del known[2], known[5]
    assert search.own_kernel_us(reader) is None


def test_mistakes_say_what_and_what_to_do(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    assert [one.label for one in tasks_of(f"kernelbench:{root}/level1", ["level1/[12]"])] == [
        "level1/1",
        "level1/2",
    ]
    left = tasks_of(f"kernelbench:{root}", ["level1/[12]", "level2/*"], ["level1/2"])
    assert [one.label for one in left] == ["level1/1", "level2/1"]
    with pytest.raises(UserError, match=r"no task of .* fits level7"):
        tasks_of(f"kernelbench:{root}", ["level7/*"])
    with pytest.raises(UserError, match="there is no suite 'nowhere'"):
        tasks_of("nowhere", [])
    ended = CliRunner().invoke(suite, ["builtin", "--to", str(tmp_path / "out"), "--minutes", "0"])
    assert isinstance(ended.exception, UserError) and "--minutes above 0" in str(ended.exception)
