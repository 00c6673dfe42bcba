"""`tasks import`: what it lists, what it says of each problem, and how a wrong name ends."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_look import evo
from tests.support.benchmark import checkout


def test_import_lists_checks_and_writes(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout")
    listed = evo("tasks", "import", f"kernelbench:{root}/level1", "--list").stdout.splitlines()
    assert len(listed) == 7 and listed[0].endswith("level1/1  Softmax")
    for broken in ("4_No_inputs", "5_Random", "6_Bessel", "2_Loss", "7_Hinge"):
        (root / f"KernelBench/level1/{broken}.py").unlink()
    done = evo("tasks", "import", f"kernelbench:{root}/level1", "--check", "--json")
    found = json.loads(done.stdout)
    assert [row["loads"] for row in found["problems"]] == [True, False]
    assert found["summary"]["level1"] == {
        "problems": 2, "load": 1, "check": 1, "degenerate": 1,
        "first_kernels": 1, "first_mixed": 0, "first_torch": 0, "first_none": 1,
    }  # fmt: skip
    assert evo("tasks", "import", f"kernelbench:{root}/level2/1", "--to", tmp_path / "task.py").returncode == 0
    assert evo("tasks", "show", tmp_path / "task.py").returncode == 0


def test_mistakes_end_with_code_2_and_one_line(tmp_path: Path) -> None:
    for spec in (f"kernelbench:{tmp_path}/level1", "kernelbench:nowhere", "other:there"):
        done = evo("tasks", "import", spec, "--list")
        assert done.returncode == 2 and "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1, spec
