"""What an exported folder holds, and that it refuses to overwrite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evo_kernel.errors import UserError
from evo_kernel.export.folder import Champion, write_champion
from evo_kernel.types import Source

CASE = {"case": "large", "us": 12.5, "baselines_us": {"eager": 25.0}, "speedup": 2.0}
ENVIRONMENT = {"kind": "modeled", "label": "modeled (sm_90)"}
CHAMPION = Champion(
    task="softmax",
    task_files={"task.py": "SEED = 'first/seed.py'\n", "first/seed.py": "def run(x): ...\n"},
    candidate=7,
    confirmed=False,
    source=Source("BLOCK = 64\n"),
    plans={"large": "{}"},
    provenance={
        "evaluation": {"score": 2.0, "environment": ENVIRONMENT, "cases": [CASE]},
        "path": [{"strategy": "seed"}, {"strategy": "online-softmax"}],
    },
)


def test_the_folder_holds_everything_that_verifies_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "champion"
    written = write_champion(CHAMPION, folder)
    assert {str(path.relative_to(folder)) for path in written} == {
        "softmax.py", "task.py", "first/seed.py", "provenance.json", "README.md", "large.plan",
    }  # fmt: skip
    assert (folder / "softmax.py").read_text() == "BLOCK = 64\n"
    assert json.loads((folder / "provenance.json").read_text()) == CHAMPION.provenance
    readme = (folder / "README.md").read_text()
    assert "modeled (sm_90)" in readme
    assert "NOT confirmed" in readme
    assert "evo-kernel verify softmax.py --task task.py --confirm" in readme
    assert "| large | 12.5 | eager 25.0 | 2.00 |" in readme


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        write_champion(CHAMPION, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_builtin_task_is_exported_with_its_seed(tmp_path: Path) -> None:
    from evo_kernel.cli.exporting import _task_files
    from evo_kernel.tasks.loading import load

    task = load("softmax")
    for name, text in _task_files(task).items():
        (tmp_path / name).write_text(text)
    assert load(str(tmp_path / "task.py")).seed == task.seed
