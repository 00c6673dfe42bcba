"""`suite`: real searches of tiny tasks in children, what is remembered of them, and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evo_kernel.cli.suite_runs import Budget, Chosen, SuiteRun, tasks_of
from evo_kernel.errors import UserError
from evo_kernel.observe.document import html, markdown
from evo_kernel.observe.suites import FASTEST, SuiteRow, figures, report
from tests.support.benchmark import checkout
from tests.support.commands import evo_main

TINY = '''"""Twice."""

import torch

CASES = {"check": [{"n": 67}], "search": [{"n": 1000}]}


def inputs(case, generator, device):
    return torch.randn(case["n"], generator=generator, device=device)


def reference(x):
    return x + x
'''


def test_a_suite_searches_goes_on_after_a_failure_and_is_done_once(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "twice.py").write_text(TINY)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "mine.txt").write_text(f"# two\n{tmp_path}/broken.py\n{tmp_path}/twice.py  # small\n")
    words = (
        "--to",
        f"{tmp_path}/out",
        "--evaluations",
        "1",
        "--device",
        "cpu",
        "--set",
        "judge.tune_plans=0",
        "--json",
    )
    ended = evo_main(capsys, monkeypatch, "suite", f"{tmp_path}/mine.txt", *words)
    assert ended.returncode == 1, ended.stderr
    broken, twice = json.loads(ended.stdout)["tasks"]
    assert broken["status"] == "failed" and "nothing_of_this_name" in broken["reason"]
    assert twice["status"] in ("passed", "confirmed") and twice["first"] == "kernels"
    assert twice["gain"] >= 1.0 and twice["own_share"] == 1.0 and twice["speedup"] is None  # modeled
    assert "modeled (sm\\_90)" in (tmp_path / "out/report.md").read_text()
    assert "modeled (sm_90)" in (tmp_path / "out/report.html").read_text()
    before = (tmp_path / "out/results.jsonl").read_text()
    again = evo_main(capsys, monkeypatch, "suite", f"{tmp_path}/mine.txt", *words)
    assert json.loads(again.stdout)["tasks"] == [broken, twice]
    assert (tmp_path / "out/results.jsonl").read_text() == before


def test_what_is_done_follows_from_the_lines_of_the_results(tmp_path: Path, monkeypatch) -> None:
    chosen = [Chosen("a.py", "a", "g"), Chosen("b.py", "b", "g")]
    searched = []

    def search(run, one, minutes, evaluations):
        searched.append((one.label, minutes, evaluations))
        return SuiteRow(one.spec, one.label, one.group, "failed" if one.label == "b" else "passed", evaluations=9)

    monkeypatch.setattr(SuiteRun, "_search", search)

    def again(budget: Budget, *, retry: bool = False) -> list[tuple]:
        searched.clear()
        list(SuiteRun(tmp_path, chosen, budget, [], retry=retry).rows())
        return list(searched)

    assert again(Budget(4, 10, 2)) == [("a", 2, 5), ("b", 2, 5), ("a", 4, 10)]  # what failed is left in peace
    assert again(Budget(4, 10, 2)) == []
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"task": "a.py", "minu')  # killed while it wrote
    assert again(Budget(4, 10, 1), retry=True) == [("b", 4, 10)]
    assert again(Budget(8, 10, 1)) == [("a", 8, 10)]
    assert again(Budget(8, None, 1)) == [("a", 8, None)]


def test_figures_count_every_problem_and_own_kernels_apart() -> None:
    def row(label: str, best_us: float | None, **more) -> SuiteRow:
        status = "failed" if best_us is None else "passed"
        baselines = {} if best_us is None else {"eager": 40.0, "compiled": 20.0}
        return SuiteRow(label, label, "level1", status, measured=True, first_us=80.0, best_us=best_us,
                        baselines_us=baselines, **more)  # fmt: skip

    rows = [row("fast", 5.0), row("mixed", 10.0, torch_operations=("mm",)), row("slow", 80.0), row("none", None)]
    found = {(one.baseline, one.own_only): one for one in figures(rows)}
    fastest = found[FASTEST, False]
    assert (fastest.correct, fastest.fast_1, fastest.fast_2) == (0.75, 0.5, 0.25)
    assert fastest.mean_all == pytest.approx((4 + 2 + 0.25) / 4)
    assert fastest.geomean_correct == pytest.approx((4 * 2 * 0.25) ** (1 / 3))
    assert (found["eager", False].fast_2, found["eager", True].correct) == (0.5, 0.5)
    rows.append(SuiteRow("x", "a|b", "level1", "failed", reason="no <kernel> | of its own"))
    blocks = report("Suite <s>", rows)
    written, page = markdown(blocks), html("Suite <s>", blocks)
    assert "| level1 | 5 | fastest | torch allowed | 60 % | 40 % | 20 % | 1.25x | 1.26x | 5.04x |" in written
    assert "| a\\|b | no &lt;kernel&gt; \\| of its own |" in written
    assert "<h1>Suite &lt;s&gt;</h1>" in page and "<td>no &lt;kernel&gt; | of its own</td>" in page


def test_mistakes_say_what_and_what_to_do(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    assert [one.label for one in tasks_of(f"kernelbench:{root}/level1", ["level1/[12]"], None)] == [
        "level1/1",
        "level1/2",
    ]
    with pytest.raises(UserError, match=r"no task of .* fits level7"):
        tasks_of(f"kernelbench:{root}", ["level7/*"], None)
    with pytest.raises(UserError, match="there is no suite 'nowhere'"):
        tasks_of("nowhere", [], None)
