"""How a search is put together: what it starts from."""

from __future__ import annotations

import pytest

from evo_kernel.app import compose
from evo_kernel.app.compose import prepared, resumed_config
from evo_kernel.config import Config, config_from, stored_config
from evo_kernel.errors import ConfigError, LoweringError, UserError
from evo_kernel.tasks import first
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.lowering.lower import NETWORK

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
    config = config_from({"task": task.spec, "device": "cpu"} | keys, "a test")
    with prepared(config, task, path, create) as parts:
        for late_root in parts.late_roots:
            late_root(60.0)
        return [(one.candidate, one.proposal.operator) for one in parts.population.pending()]


def test_a_search_starts_from_the_usual_first_kernel_and_torch_compiles(task, tmp_path, monkeypatch):
    other = first.Source(first.first_kernel(task).text + "\n# written by somebody else\n")
    asked = []
    monkeypatch.setattr(first, "compiled_baseline", lambda task: asked.append(task) or other)
    assert roots(task, tmp_path / "auto.db", first="auto") == [(1, "seed")] and not asked
    assert roots(task, tmp_path / "all.db") == [(1, "seed"), (2, "compiled")]
    assert roots(task, tmp_path / "all.db", create=False) == [(1, "seed"), (2, "compiled")]
    assert len(asked) == 1  # a resumed population has its roots


def test_a_search_on_convolutions_that_pytorch_may_do_starts_from_those(tmp_path):
    path = tmp_path / "convolve.py"
    path.write_text(
        'import torch\nALLOW = "mixed"\nCASES = {"check": [{"n": 1}], "search": [{"n": 2}]}\n'
        "def inputs(case, generator, device):\n"
        "    d = dict(generator=generator, device=device)\n"
        "    return torch.randn(case['n'], 8, 9, 9, **d), torch.randn(8, 8, 3, 3, **d)\n"
        "def reference(x, w):\n    return torch.relu(torch.nn.functional.conv_transpose2d(x, w))\n"
    )
    task = load(path)
    found = first.first_of(task)
    assert found.origin == "compiled" and first.left_to_torch(found.source) == ["convolution.default"]
    assert "aten" not in found.lowered.text and "ynumel" in found.source.text  # channels are last in what cuDNN returns
    assert roots(task, tmp_path / "p.db") == [(1, "compiled"), (2, "lowered")]


def test_a_search_on_a_network_that_pytorch_may_compute_starts_from_torch_compiles(tmp_path):
    path = tmp_path / "network.py"
    path.write_text(
        'import torch\nALLOW = "mixed"\nCASES = {"check": [{"n": 4}], "search": [{"n": 8}]}\n'
        "def inputs(case, generator, device):\n"
        f"    shapes = [(case['n'], 16), *[(16, 16)] * {NETWORK - 1}]\n"
        "    return [torch.randn(shape, generator=generator, device=device) for shape in shapes]\n"
        "def reference(x, *weights):\n    for w in weights:\n        x = torch.relu(x @ w)\n    return x\n"
    )
    task = load(path)
    found = first.first_of(task)
    assert found.origin == "compiled" and set(first.left_to_torch(found.source)) == {"mm.out"}
    assert roots(task, tmp_path / "p.db") == [(1, "compiled"), (2, "lowered")]


def test_a_search_on_large_products_starts_from_their_template_where_that_is_measured(tmp_path, monkeypatch):
    path = tmp_path / "multiply.py"
    path.write_text(
        'import torch\nALLOW = "mixed"\nCASES = {"check": [{"n": 256}], "search": [{"n": 512}]}\n'
        "def inputs(case, generator, device):\n"
        "    return [torch.randn(case['n'], case['n'], generator=generator, device=device) for _ in range(2)]\n"
        "def reference(x, y):\n    return x @ y\n"
    )
    task = load(path)
    assert roots(task, tmp_path / "modeled.db", device="cpu") == [(1, "seed")]  # torch.compile would call PyTorch
    monkeypatch.setattr(compose, "is_hopper", lambda device: True)
    assert roots(task, tmp_path / "p.db", device="auto") == [(1, "gluon"), (2, "lowered")]
    with pytest.raises(LoweringError, match="no kernel of its own"):
        first.first_of(task, "compiled")


def test_a_search_starts_from_a_packages_function(task, tmp_path, monkeypatch):
    (tmp_path / "published_ops.py").write_text(first.first_kernel(task).text.replace("def run(", "def twice("))
    monkeypatch.syspath_prepend(tmp_path)
    assert roots(task, tmp_path / "first.db", first="published_ops:twice") == [(1, "seed")]
    both = {"first": "auto", "seeds": ["published_ops:twice"]}
    assert roots(task, tmp_path / "seed.db", **both) == [(1, "seed"), (2, "seed")]
    with pytest.raises(UserError, match="no function or class thrice"):
        roots(task, tmp_path / "none.db", first="published_ops:thrice")


def test_a_search_starts_from_files_too(task, tmp_path, monkeypatch):
    monkeypatch.setattr(first, "compiled_baseline", lambda task: None)
    mine = tmp_path / "mine.py"
    mine.write_text(first.first_kernel(task).text + "\n# mine\n")
    keys = {"first": "auto", "seeds": [str(mine)]}
    assert roots(task, tmp_path / "files.db", **keys) == [(1, "seed"), (2, "seed")]
    mine.unlink()
    assert roots(task, tmp_path / "files.db", create=False, **keys) == [(1, "seed"), (2, "seed")]
    with pytest.raises(ConfigError, match=r"mine\.py"):
        roots(task, tmp_path / "missing.db", **keys)


def test_a_file_does_where_the_task_has_no_first_kernel(task, tmp_path, monkeypatch):
    mine = tmp_path / "mine.py"
    mine.write_text(first.first_kernel(task).text)

    def none(task):
        raise LoweringError("no kernels")

    monkeypatch.setattr(compose, "first_of", none)
    assert roots(task, tmp_path / "p.db", seeds=[str(mine)]) == [(1, "seed")]
    assert roots(task, tmp_path / "p.db", create=False, seeds=[str(mine)]) == [(1, "seed")]
    with pytest.raises(LoweringError):
        roots(task, tmp_path / "other.db")


def test_one_first_kernel_does_where_torch_compile_has_none(task, tmp_path, monkeypatch):
    def none(task):
        raise LoweringError("no kernels")

    monkeypatch.setattr(first, "compiled_baseline", none)
    assert roots(task, tmp_path / "p.db") == [(1, "seed")]
    monkeypatch.undo()
    assert roots(task, tmp_path / "p.db", create=False) == [(1, "seed"), (2, "compiled")]  # it was not lost


def test_first_kernels_of_earlier_versions_are_those_of_now():
    kept = {"both": "all", "compiled": "all", "auto": "auto"}
    assert {name: stored_config({"first": name}, "old.db")[0].first for name in kept} == kept
    command = {"operators": {"use": ["mtmc", "external"]}, "external": {"command": "sh evil.sh", "minutes": 5.0}}
    config, gone = stored_config(command, "old.db")  # `agent` is gone: nothing of a stored shell command is run
    assert config.operators.use == ("mtmc",) and gone == ["operators.use=external", "external"]


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
