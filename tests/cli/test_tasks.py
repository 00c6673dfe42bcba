"""`tasks new` and `tasks show` on a user's own file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import evo_process as evo


def test_a_new_task_file_loads_and_has_a_first_kernel(tmp_path: Path) -> None:
    path = tmp_path / "my_op.py"
    assert evo("tasks", "new", path).returncode == 0
    found = json.loads(evo("tasks", "show", path, "--json").stdout)
    assert (found["name"], found["seed"]) == ("my_op", False)
    assert {case["kind"] for case in found["cases"]} == {"check", "search", "confirm"}
    assert found["baselines"] == ["eager", "torch.compile"]
    assert "baselines eager, torch.compile\n" in evo("tasks", "show", path).stdout
    first = evo("tasks", "show", path, "--seed").stdout
    assert "@triton.jit" in first and "def run(" in first
    path.write_text("mine")
    again = evo("tasks", "new", path)
    assert (again.returncode, path.read_text()) == (2, "mine")
