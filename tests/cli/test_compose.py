"""How a search is put together: what it starts from."""

from __future__ import annotations

import pytest

from evo_kernel.app.compose import prepared, resumed_config
from evo_kernel.config import Config, config_from
from evo_kernel.errors import ConfigError, LoweringError
from evo_kernel.tasks import first
from evo_kernel.tasks.loading import load

TASK = '''"""Twice a tensor."""
CASES = {"check": [{"n": 7}], "search": [{"n": 64}]}


def inputs(case, generator, device):
    import torch

    return (torch.randn(case["n"], generator=generator, device=device),)


def reference(x):
    return x * 2
'''


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(TASK)
    return load(path)


def roots(task, path, create=True, **keys):
    config = config_from({"task": task.spec, "device": "cpu", **keys}, "a test")
    with prepared(config, task, path, create) as parts:
        return [(one.candidate, one.proposal.operator) for one in parts.population.pending()]


def test_both_starts_from_the_usual_first_kernel_and_torch_compiles(task, tmp_path, monkeypatch):
    other = first.Source(first.first_kernel(task).text + "\n# written by somebody else\n")
    asked = []
    monkeypatch.setattr(first, "_compiled", lambda *given: asked.append(given) or other)
    assert roots(task, tmp_path / "auto.db") == [(1, "seed")] and not asked
    assert roots(task, tmp_path / "both.db", first="both") == [(1, "seed"), (2, "compiled")]
    assert roots(task, tmp_path / "both.db", create=False, first="both") == [(1, "seed"), (2, "compiled")]
    assert len(asked) == 1  # a resumed population has its roots


def test_both_goes_on_with_one_where_torch_compile_has_none(task, tmp_path, monkeypatch):
    def none(*given):
        raise LoweringError("no kernels")

    monkeypatch.setattr(first, "_compiled", none)
    assert roots(task, tmp_path / "p.db", first="both") == [(1, "seed")]


def test_settings_that_are_no_more_are_ignored_in_a_file_and_named(tmp_path, capsys):
    stored = Config(task="softmax").model_dump(mode="json")
    stored["judge"] |= {"prefilter": "on", "tune_plans": 3}
    stored["operators"]["use"] = ["session", "avo"]
    config = resumed_config(tmp_path / "old.db", stored | {"gone": {"a": 1}})
    assert config.judge.tune_plans == 3 and config.operators.use == ("avo",) and stored["judge"]["prefilter"] == "on"
    said = capsys.readouterr().err
    assert "old.db was made by an earlier version: ignoring its settings" in said
    assert "judge.prefilter" in said and "operators.use=session" in said and "gone" in said
    with pytest.raises(ConfigError, match=r"judge\.prefilter"):
        config_from({"judge": {"prefilter": "on"}}, "mine.toml")
