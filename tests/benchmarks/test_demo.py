"""The demo's last word, over what a real search found."""

from __future__ import annotations

import io
import os
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import demo
from tests.support.commands import ROOT, evo, told


def test_the_demo_ends_with_one_table_and_the_next_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "softmax.py").write_text(
        "import torch\n\nCASES = {'check': [{'m': 5, 'n': 127}], 'search': [{'m': 512, 'n': 1024}]}\n\n\n"
        "def inputs(case, generator, device):\n"
        "    return torch.randn(case['m'], case['n'], generator=generator, device=device)\n\n\n"
        "def reference(x):\n    return torch.softmax(x, -1)\n"
    )
    limits = ["--set", "budget.evaluations=3", "--set", "judge.tune_plans=0"]
    found = told(evo("run", "softmax.py", "--device", "cpu", "--json", *limits))
    monkeypatch.setattr(demo, "FOLDER", ROOT / "demo")
    out, nothing = io.StringIO(), {**found, "task": "matmul", "best": None}
    demo.show(Console(file=out, width=120), [found, nothing], 61.0)
    shown = out.getvalue()
    assert "found in 61 s, times in µs, modeled for an H200 (sm_90)" in shown and "no kernel passed" in shown
    ((case, at),) = list(found["best"]["cases"].items())[:1]
    row = next(line for line in shown.splitlines() if case in line)
    assert f"{at['us']:.1f}" in row and f"torch.compile {at['baselines_us']['torch.compile']:.1f}" in row
    assert f"{at['floor_us']:.1f}" in row and f"{at['baselines_us']['torch.compile'] / at['us']:.2f}x" in row
    commands = [line.removeprefix("next: ") for line in shown.splitlines() if line.startswith("next: ")]
    assert commands[0] == f".venv/bin/evo-kernel show {os.path.join('demo', 'softmax.db')}"
    assert [shlex.split(line, comments=True)[1] for line in commands] == ["show", "tasks", "run"]
    assert (tmp_path / "softmax.db").exists()


def test_a_search_in_which_nothing_passes_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    seed = "import torch\n\n\ndef run(x):\n    return x\n"
    (tmp_path / "mine.py").write_text(
        f"import torch\n\nCASES = {{'search': [{{'n': 64}}]}}\nSEED = {seed!r}\n\n\n"
        "def inputs(case, generator, device):\n    return torch.randn(case['n'], generator=generator, device=device)\n\n\n"
        "def reference(x):\n    return x * 2\n\n\nreference.compiled_baseline = False\n"
    )
    found = demo.searched("run", "mine.py", "--device", "cpu", "--first", "auto", "--set", "budget.evaluations=1")
    assert found["best"] is None
    with pytest.raises(SystemExit) as ended:
        demo.searched("status", "no-such.db")
    assert ended.value.code == 2


def test_make_says_what_it_installs_before_it_is_silent() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    at = lines.index("$(READY): pyproject.toml constraints.txt")
    assert lines[at + 1].startswith('\t@echo "Installing PyTorch') and "silent for" in lines[at + 1]
