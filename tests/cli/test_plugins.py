"""Operators, policies and tasks that another package offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo_kernel import plugins
from evo_kernel.config import load_config
from evo_kernel.errors import UserError
from tests.support.scripted import ScriptedOperator

ENTRY_POINTS = """[evo_kernel.operators]
scripted = tests.support.scripted:ScriptedOperator
broken = no_such_module:thing
[evo_kernel.policies]
mine = operators.macro.policies:UniformPolicy
[evo_kernel.tasks]
mine = {module}:PATH
"""


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "another-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS.format(module="another_tasks"))
    task = tmp_path / "doubled.py"
    task.write_text(
        "import torch\nCASES = [{'n': 64}]\n"
        "def inputs(case, generator, device):\n"
        "    return (torch.randn(case['n'], generator=generator, device=device),)\n"
        "def reference(x):\n    return 2 * x\n"
    )
    (tmp_path / "another_tasks.py").write_text(f"PATH = {str(task)!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return task


def test_operators_and_policies_join_the_mix(offered: Path) -> None:
    from evo_kernel.app.operator_factory import build_operator

    mix = build_operator(load_config(None, ["operators.installed.scripted=2.0", "operators.policy=mine"]))
    assert isinstance(mix.operators["scripted"], ScriptedOperator)


def test_tasks_are_found_by_name(offered: Path) -> None:
    from evo_kernel.app.compose import task_of

    task = task_of(load_config(None, ["task=mine"]))
    assert task.path == offered
    assert task.spec == str(offered)


def test_what_is_missing_is_named(offered: Path) -> None:
    from evo_kernel.app.operator_factory import build_operator

    with pytest.raises(UserError, match=r"no installed package offers 'scriptd'.*found: broken, scripted"):
        plugins.factory(plugins.OPERATORS, "scriptd")
    with pytest.raises(UserError, match=r"'agent' is none of mtmc, crossover, .*avo.*, and no installed package"):
        build_operator(load_config(None, ["operators.use=['agent']"]))
    with pytest.raises(UserError, match="does not import"):
        plugins.factory(plugins.OPERATORS, "broken")
