"""Every tool of the workbench, its budgets, its refusals, and that nothing leaves the workspace."""

from __future__ import annotations

import json
import os
import threading

import pytest

from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import MAX_OUTPUT, WorkbenchDeps
from operators.workbench.toolset import ToolOutcome, Workbench, start_files, task_files
from operators.workbench.workspace import MAX_FILES, Workspace
from tests.operators.workbench.fakes import PARENT, FakeBench, FakeKnowledge, FakeLineage, FakeNotebook, brief, kernel


@pytest.fixture
def bench():
    return FakeBench()


@pytest.fixture
def rooms(bench):
    return WorkbenchDeps(bench, FakeLineage(PARENT, type(PARENT)(kernel(90.0))), FakeKnowledge(), FakeNotebook())


@pytest.fixture
def work(tmp_path, rooms):
    return opened(tmp_path / "room", rooms)


def opened(folder, rooms, **allowed):
    ticket = brief()
    workspace = Workspace(folder, start_files(ticket.parent.source), task_files(ticket))
    return Workbench(workspace, rooms, ticket, "avo", Allowed(**allowed) if allowed else None)


def said(work, name, **arguments):
    outcome = work.call(name, json.dumps(arguments))
    assert not outcome.failed, outcome.text
    return outcome.text


def refused(work, name, **arguments):
    outcome = work.call(name, json.dumps(arguments))
    assert outcome.failed and outcome.text.startswith("Failed: "), outcome.text
    return outcome.text


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_every_tool_is_described_and_offered_to_models(work):
    for name, tool in work.tools.items():
        assert tool.name == name and len(tool.description) > 20
        assert tool.parameters["additionalProperties"] is False
    assert set(work.tools) == {
        "list_files", "read_file", "search_files", "write_file", "edit_file", "evaluate", "probe", "compile", "profile",
        "submit",
        "lineage", "show_version", "diff_versions", "knowledge", "note", "notes", "refute_note",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("evalute", "{}", "did you mean evaluate?"),
        ("shell", "{}", "There are: list_files"),
        ("evaluate", "{", "are no JSON"),
        ("evaluate", "[]", "must be one JSON object"),
        ("evaluate", "{}", "'idea' is a required property"),
        ("evaluate", '{"idea": "x y z", "file": "a"}', "evaluate takes no 'file'"),
        ("evaluate", '{"idea": 3}', "not of type 'string'"),
        ("read_file", '{"path": "kernel.py", "lines": 0}', "minimum"),
        ("submit", '{"idea": "abc", "strategy": "a", "family": "magic"}', "is not one of"),
        ("evaluate", '{"idea": "abc", "path": null', "are no JSON"),
        ("evaluate", "[" * 100_000, "are no JSON"),
    ],
)
def test_wrong_calls_are_answered_with_what_to_do(work, bench, name, arguments, expected):
    outcome = work.call(name, arguments)
    assert outcome.failed and expected in outcome.text and len(outcome.text) <= MAX_OUTPUT
    assert not bench.asked


def test_null_means_left_out(work):
    assert not work.call("read_file", {"path": "kernel.py", "from_line": None}).failed


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_are_listed_read_searched_written_and_edited(work):
    listed = said(work, "list_files")
    assert "kernel.py" in listed and "task/task.md" in listed and "(read only)" in listed
    assert "    1  def run(x):" in said(work, "read_file", path="kernel.py")
    assert said(work, "search_files", text="TIME_us") == "kernel.py:4: time_us = 100.0"
    said(work, "edit_file", path="kernel.py", edits=[{"search": "time_us = 100.0", "replace": "time_us = 80.0"}])
    assert "time_us = 80.0" in said(work, "read_file", path="kernel.py", from_line=4)
    said(work, "write_file", path="notes/plan.md", text="one\ntwo\n")
    assert "notes/plan.md" in said(work, "list_files", under="notes")


def test_a_failed_edit_shows_the_nearest_lines_and_keeps_what_fits(work):
    text = refused(
        work, "edit_file", path="kernel.py",
        edits=[{"search": "    return x", "replace": "    return x + 0"}, {"search": "time_us = 100", "replace": "a"}],
    )  # fmt: skip
    assert "Block 2" in text and "time_us = 100.0" in text and "Already in, do not send again: block 1" in text
    assert "return x + 0" in said(work, "read_file", path="kernel.py")


@pytest.mark.parametrize(
    "path",
    ["../out.py", "/etc/passwd", "a/../../b", "~/x", ".hidden", "a/.git/config", "", "a\\b", "x\0y", "a/b/c/d/e/f/g",
     "x" * 201, "\ud800"],
)  # fmt: skip
def test_paths_out_of_the_workspace_are_refused(work, tmp_path, path):
    for name, rest in (("read_file", {}), ("write_file", {"text": "hello"}), ("edit_file", {"edits": EDIT})):
        outcome = work.call(name, {"path": path, **rest})
        assert outcome.failed, name
    assert not (tmp_path / "out.py").exists()


EDIT = [{"search": "a", "replace": "b"}]


def test_links_are_not_followed(work, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("time_us = the secret\n")
    room = work.workspace.folder
    (room / "link.txt").symlink_to(secret)
    (room / "out").symlink_to(tmp_path)
    os.mkfifo(room / "pipe")
    for path in ("link.txt", "out/secret.txt", "pipe"):
        assert "secret\n" not in refused(work, "read_file", path=path)
    assert "link.txt" not in said(work, "list_files") and "pipe" not in said(work, "list_files")
    assert said(work, "search_files", text="= the secret").startswith("no line")
    said(work, "write_file", path="link.txt", text="mine\n")  # replaces the link, not what it names
    assert secret.read_text() == "time_us = the secret\n"
    refused(work, "write_file", path="out/new.txt", text="no")
    assert not (tmp_path / "new.txt").exists()


def test_what_is_no_file_is_said_and_leaves_nothing_open(work):
    said(work, "write_file", path="sub/notes.txt", text="x")
    os.mkfifo(work.workspace.folder / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("sub", "pipe"):
        assert f"{name} is no file; list_files" in refused(work, "read_file", path=name)
    assert len(os.listdir("/proc/self/fd")) == before
    assert "did you mean kernel.py? list_files shows the 4" in refused(work, "read_file", path="kernels.py")


def test_a_workspace_is_bounded(work):
    assert "larger than" in refused(work, "write_file", path="big.txt", text="x" * 500_000)
    for number in range(MAX_FILES - 3):
        work.workspace.write(f"f{number}.txt", "x")
    assert "holds 200 files" in refused(work, "write_file", path="more.txt", text="x")
    assert "may only be read" in refused(work, "write_file", path="task/task.md", text="x")


def test_task_texts_are_served_as_they_were(work):
    (work.workspace.folder / "task/task.md").write_text("all is allowed")
    assert "all is allowed" not in said(work, "read_file", path="task/task.md")


def test_outputs_are_bounded(work):
    said(work, "write_file", path="long.txt", text=("y" * 300 + "\n") * 1000)
    assert len(said(work, "read_file", path="long.txt", lines=2000)) <= MAX_OUTPUT
    assert len(said(work, "search_files", text="y")) <= MAX_OUTPUT


# ---- the judge -------------------------------------------------------------------------------------------------------


def test_evaluate_tells_times_and_the_gate_and_counts(work, bench):
    work.call("write_file", {"path": "kernel.py", "text": kernel(80.0)})
    outcome = work.call("evaluate", {"idea": "fewer loads"})
    assert "E7.1" in outcome.text and "80.00" in outcome.text and "gate: would pass" in outcome.text
    assert "samples a case, at least: 45" in outcome.text and "left: 39 evaluations" in outcome.text
    assert outcome.charged == {"score": 1} and outcome.gpu_s == 0.5
    again = work.call("evaluate", {"idea": "the same"})
    assert "known" in again.text and not again.charged and len(bench.asked) == 1


def test_a_fault_comes_with_its_category(work):
    work.call("write_file", {"path": "kernel.py", "text": kernel(80.0, "# wrong\n")})
    text = said(work, "evaluate", idea="a guess")
    assert "wrong (category: calculation)" in text and "scripted: wrong" in text


def test_budgets_end(tmp_path, rooms, bench):
    work = opened(tmp_path / "room", rooms, evaluations=2, probes=1, profiles=1, submits=1)
    for number in range(2):
        work.call("write_file", {"path": "kernel.py", "text": kernel(110.0 + number)})
        said(work, "evaluate", idea="try it")
    work.call("write_file", {"path": "kernel.py", "text": kernel(115.0)})
    assert "2 calls of evaluate are used up" in refused(work, "evaluate", idea="once more")
    said(work, "probe")
    work.call("write_file", {"path": "kernel.py", "text": kernel(116.0)})
    assert "used up" in refused(work, "probe")
    said(work, "profile")
    assert "used up" in refused(work, "profile")
    assert "used up" in refused(work, "submit", idea="unknown text", strategy="x-y")
    assert len(bench.asked) == 3


def test_what_the_machine_does_wrong_costs_nothing_and_is_said(work, bench):
    bench.down = True
    assert "the machine failed" in refused(work, "evaluate", idea="anything")
    bench.down = False
    said(work, "evaluate", idea="anything")


def test_submit_commits_only_what_the_gate_lets_through(work, bench):
    work.call("write_file", {"path": "kernel.py", "text": kernel(120.0)})
    first = work.call("submit", {"idea": "slower", "strategy": "Bad Idea"})
    assert first.text.startswith("Not committed.") and first.submission is None
    assert first.charged == {"score": 2, "confirm": 2} and first.gpu_s == 2.0
    assert "refused already" in refused(work, "submit", idea="slower", strategy="bad-idea")
    assert "must be a short name" in refused(work, "submit", idea="slower", strategy="stop")
    work.call("write_file", {"path": "kernel.py", "text": kernel(50.0)})
    done = work.call("submit", {"idea": "faster", "strategy": "Split K", "family": "tiling", "merged_from": [2]})
    assert done.submission and done.submission.strategy == "split-k" and done.submission.parents == (2,)
    assert work.submission == done.submission
    assert "the attempt is over" in refused(work, "evaluate", idea="more")
    assert ToolOutcome.from_data(json.loads(json.dumps(done.as_data()))) == done


def test_submit_refuses_the_parent_wrong_names_and_unknown_versions(work, bench):
    assert "change it first" in refused(work, "submit", idea="nothing", strategy="no-op")
    work.call("write_file", {"path": "kernel.py", "text": kernel(50.0)})
    assert "short name" in refused(work, "submit", idea="abc", strategy="!!")
    assert "no candidate 99" in refused(work, "submit", idea="abc", strategy="ab", merged_from=[99])
    work.call("write_file", {"path": "kernel.py", "text": "x = 1"})
    assert "has no `def run(" in refused(work, "submit", idea="abc", strategy="ab")
    assert not bench.asked


# ---- what is known ---------------------------------------------------------------------------------------------------


def test_lineage_sources_and_differences(work):
    assert "C2 from C1" in said(work, "lineage", order="newest")
    assert "time_us = 90.0" in said(work, "show_version", version=2)
    said(work, "show_version", version=2, save_to="old.py")
    assert "time_us = 90.0" in said(work, "read_file", path="old.py")
    assert "+time_us = 90.0" in said(work, "diff_versions", older=1, newer=2)
    assert said(work, "diff_versions", older=1, path="kernel.py") == "they are the same"
    assert "no candidate 9" in refused(work, "show_version", version=9)
    assert "no candidate 9" in refused(work, "lineage", order="path", of=9)
    assert "name either" in refused(work, "diff_versions", older=1)


def test_knowledge_names_its_source(work):
    assert "evo-kernel/wgmma.md#shapes" in said(work, "knowledge", query="wgmma shapes")
    assert "nothing fits" in said(work, "knowledge", query="cooking")


def test_notes_must_be_founded(work, rooms):
    text = "Fewer stages are faster here."
    cited = [{"evaluation": "E7.1", "samples": 45}]
    assert said(work, "notes") == "no notes yet" and "no note fits 'zebra'" in said(work, "notes", query="zebra")
    assert "unfounded" in refused(work, "note", text=text, evidence=cited)
    said(work, "evaluate", idea="as it is")
    assert "45 samples a case, not 90" in refused(work, "note", text=text, evidence=[cited[0] | {"samples": 90}])
    assert "evidence" in refused(work, "note", text=text, evidence=[])
    said(work, "note", text=text, evidence=[*cited, {"evaluation": "C2", "samples": 45}])
    assert "E7.1: passed 1.000, n=45" in said(work, "notes")
    assert "unfounded" in refused(work, "note", text=text, evidence=[{"evaluation": "C99x", "samples": 1}])
    said(work, "refute_note", note=1, why="It was slower on all cases.", evidence=cited)
    assert "REFUTED: It was slower" in said(work, "notes")
    assert "refuted already" in refused(work, "refute_note", note=1, why="once more, it is so", evidence=cited)


# ---- restoring -------------------------------------------------------------------------------------------------------


def test_a_restored_workbench_stands_where_the_first_one_stood(tmp_path, rooms, bench):
    first, outcomes = opened(tmp_path / "one", rooms), []

    def do(name, **arguments):
        outcomes.append(first.call(name, arguments))

    do("write_file", path="kernel.py", text=kernel(120.0))
    do("evaluate", idea="slower")
    do("edit_file", path="kernel.py", edits=[{"search": "    return x", "replace": "    return x  # so"}])
    do("submit", idea="slower still", strategy="bad")
    do("nonsense")
    do("note", text="Slower in every way.", evidence=[{"evaluation": "E7.1", "samples": 45}])
    second = opened(tmp_path / "two", rooms)
    for outcome in outcomes:
        second.restore(ToolOutcome.from_data(json.loads(json.dumps(outcome.as_data()))))
    assert second.workspace.files() == first.workspace.files()
    assert second.workspace.read("kernel.py") == first.workspace.read("kernel.py")
    assert second.left() == first.left()
    for work in (first, second):
        assert "refused already" in refused(work, "submit", idea="slower still", strategy="bad")
        said(work, "note", text="It may be cited again.", evidence=[{"evaluation": "E7.1", "samples": 45}])


def test_calls_from_many_threads_are_carried_out_one_by_one(work):
    threads = [
        threading.Thread(target=work.call, args=("write_file", {"path": f"t{n}.txt", "text": "x" * n}))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(path.startswith("t") and path.endswith(".txt") for path, _, _ in work.workspace.files()) == 20


def test_what_only_reads_waits_for_no_judge(work, bench):
    bench.free = threading.Event()
    kept = []
    slow = threading.Thread(target=lambda: kept.append(work.call("evaluate", {"idea": "slow"}, kept.append)))
    slow.start()
    assert bench.busy.wait(20)
    work.call("write_file", {"path": "plan.md", "text": "while it runs"}, kept.append)
    for name, arguments in (
        ("list_files", {}), ("read_file", {"path": "kernel.py"}), ("search_files", {"text": "run"}), ("lineage", {}),
        ("knowledge", {"query": "wgmma"}), ("notes", {}), ("show_version", {"version": 1}),
    ):  # fmt: skip
        said(work, name, **arguments)
    assert "do not fit" in refused(work, "probe", path=3)  # wrong arguments wait for nothing either
    second = threading.Thread(target=work.call, args=("probe", {}))
    second.start()
    second.join(0.3)
    assert second.is_alive() and len(bench.asked) == 1  # the judge is asked one thing after another
    bench.free.set()
    for thread in (slow, second):
        thread.join(20)
    assert [one.changes for one in kept[:2]] == [{"plan.md": "while it runs"}, {}]  # in the order of their changes
    assert kept[0].counts == {"evaluate": 1} and kept[1].facts["evaluation"] == "E7.1"


def test_a_closed_workbench_ends_what_is_under_way_and_begins_nothing(work, bench):
    bench.free, found = threading.Event(), []
    slow = threading.Thread(target=lambda: found.append(work.call("evaluate", {"idea": "slow"})))
    slow.start()
    assert bench.busy.wait(20)
    threading.Timer(0.2, bench.free.set).start()
    work.close("it is over")
    slow.join(20)
    assert not found[0].failed and refused(work, "list_files") == "Failed: it is over"


def test_a_profile_takes_the_tuned_knobs_and_a_wrong_one_costs_nothing(work, bench):
    assert "there is no case 'wrong'; there are large" in refused(work, "profile", case="wrong")
    assert "knobs as they stand in the file" in said(work, "profile")
    bench.knobs = (("BLOCK", 512), ("num_warps", 8))
    said(work, "evaluate", idea="tuned")
    assert "knobs that were tuned for it: BLOCK=512, num_warps=8" in said(work, "profile", case="large")
    assert bench.profiled == [(None, ()), ("large", bench.knobs)]
    work.call("write_file", {"path": "kernel.py", "text": kernel(9.0, "# broken")})
    assert "no profile" in refused(work, "profile")
    assert "38 profile" in work.left()
    bench.down = True
    assert "the machine failed" in refused(work, "probe")
    assert "200 probe" in work.left()


def test_compile_takes_knobs_writes_listings_and_costs_nothing(work, bench):
    before = work.left()
    text = said(work, "compile", case="large", knobs={"BLOCK": 128}, sass="out/k.sass", ptx="k.ptx")
    assert text == "k  40 registers, case large, {'BLOCK': 128}" and work.left() == before
    assert "MOV R1, R2" in said(work, "read_file", path="out/k.sass")
    assert "mov.u32" in said(work, "read_file", path="k.ptx")
    assert "there is no case 'hidden'" in refused(work, "compile", case="hidden")
    assert "not of type 'integer'" in refused(work, "compile", knobs={"BLOCK": "128"})
    assert "40 registers" in said(work, "probe") and not bench.profiled
    work.call("write_file", {"path": "kernel.py", "text": kernel(9.0, "# broken")})
    assert refused(work, "compile") == "Failed: build_error: scripted"
    assert "build_error" in said(work, "probe"), "what does not compile is said once"


def test_errors_name_the_limits(work):
    assert "2 characters, at least 3 are needed" in refused(work, "evaluate", idea="ab")
    assert "201 characters, at most 200 are taken" in refused(work, "evaluate", idea="x" * 201)
    assert "less than the minimum of 1" in refused(work, "lineage", limit=0)
    assert "idea: string of 3 to 200 characters" in refused(work, "evaluate")
    assert "0 items, at least 1 are needed" in refused(work, "note", text="long enough", evidence=[])
    assert len(refused(work, "list_files", **{"x" * 9000: 1})) < 500


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("lineage", '{"limit": 1.0}', "C1"),
        ("read_file", '{"path": "kernel.py", "from_line": 2.0, "lines": 1}', "return x"),
        ("lineage", '{"of": 99999999999999999999}', "Failed: a number is too large"),
        ("read_file", '{"path": "kernel.py", "from_line": 1e308}', "Failed: a number is too large"),
        ("evaluate", '{"idea": "\\ud800 half"}', "Failed: a text holds half of a surrogate pair"),
        ("note", '{"text": "long enough", "evidence": [{"evaluation": "C\\ud800", "samples": 0}]}', "Failed: a text"),
    ],
)
def test_what_a_schema_lets_through_and_nothing_else_could_take(work, name, arguments, expected):
    assert expected in work.call(name, arguments).text
