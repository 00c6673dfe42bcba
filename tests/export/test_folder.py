"""What an exported folder holds, and that it refuses to overwrite."""

from __future__ import annotations

import json
from dataclasses import replace
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
    survival="96% of the claimed gain survived: 2.000x claimed; over the first kernel, modeled: 1.945x",
    hidden=True,
    source=Source("BLOCK = 64\n"),
    plans={"large": "{}"},
    check_plans={"small": "{}"},
    provenance={
        "evaluation": {"score": 2.0, "environment": ENVIRONMENT, "cases": [CASE]},
        "path": [{"strategy": "seed"}, {"strategy": "online-softmax"}],
    },
)


def test_the_folder_holds_everything_that_verifies_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "champion"
    written = write_champion(CHAMPION, folder)
    assert {str(path.relative_to(folder)) for path in written} == {
        "softmax.py", "task.py", "first/seed.py", "provenance.json", "README.md", "large.plan", "small.plan",
    }  # fmt: skip
    assert (folder / "softmax.py").read_text() == "BLOCK = 64\n"
    assert json.loads((folder / "provenance.json").read_text()) == CHAMPION.provenance
    readme = (folder / "README.md").read_text()
    assert "modeled (sm_90)" in readme
    assert "NOT confirmed on hidden cases" in readme
    assert "\n96% of the claimed gain survived: 2.000x claimed" in readme
    assert "evo-kernel verify softmax.py --task task.py --confirm" in readme
    assert "| large | 12.5 | eager 25.0 | 2.00 |" in readme
    anywhere, with_gpu = readme.split("Time its plans at full size")
    assert "replay small.plan --task task.py" in anywhere and "replay large.plan" not in anywhere
    assert "replay large.plan --task task.py" in with_gpu and "without one the time is modeled" in with_gpu


@pytest.mark.parametrize(("hidden", "says"), [(True, "hidden cases"), (False, "the search cases with fresh seeds")])
def test_it_says_what_it_was_confirmed_on(tmp_path: Path, hidden: bool, says: str) -> None:
    write_champion(replace(CHAMPION, confirmed=True, hidden=hidden), tmp_path)
    assert f"; confirmed on {says}." in (tmp_path / "README.md").read_text()


def test_a_task_without_confirm_cases_hides_none(tmp_path: Path) -> None:
    from evo_kernel.cli.exporting import _has_hidden_cases
    from evo_kernel.tasks.loading import load

    assert _has_hidden_cases(load("softmax"))
    (tmp_path / "bare.py").write_text(
        "import torch\nCASES = [{'n': 64}]\n"
        "def inputs(case, generator, device):\n"
        "    return (torch.randn(case['n'], generator=generator, device=device),)\n"
        "def reference(x):\n    return 2 * x\n"
    )
    assert not _has_hidden_cases(load(str(tmp_path / "bare.py")))


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
