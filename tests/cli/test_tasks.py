"""`tasks new` and `tasks show` on a user's own file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.scripts import script


def evo(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own."""
    command = script("-m", "evo_kernel.cli.main", *arguments)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_a_new_task_file_loads_and_has_a_first_kernel(tmp_path: Path) -> None:
    path = tmp_path / "my_op.py"
    assert evo("tasks", "new", path).returncode == 0
    found = json.loads(evo("tasks", "show", path, "--json").stdout)
    assert (found["name"], found["seed"]) == ("my_op", False)
    assert {case["kind"] for case in found["cases"]} == {"check", "search", "confirm"}
    assert found["baselines"] == ["eager", "torch.compile"]
    path.write_text(path.read_text().replace("device=device),)", "device=device).t(), 3)").replace("(x):", "(x, n):"))
    shown = evo("tasks", "show", path).stdout
    assert "baselines eager, torch.compile\n" in shown
    assert "\n           x float32[127, 5] strides [1, 127], n = 3\n" in shown
    path.write_text(path.read_text().replace("device=device).t(), 3)", "device=device),)").replace("(x, n):", "(x):"))
    first = evo("tasks", "show", path, "--seed").stdout
    assert "@triton.jit" in first and "def run(" in first
    path.write_text("mine")
    again = evo("tasks", "new", path)
    assert (again.returncode, path.read_text()) == (2, "mine")
