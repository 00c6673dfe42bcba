"""Every guide has one worked example that compiles for sm_90 and computes what it says."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from operators.macro.catalogue import CATALOGUE
from operators.micro.llm_coder import guides
from operators.prompts.parts import Budgets, tokens
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]


def examples(guide: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)


def answers(how, folder, **settings):
    for name, text in guides().items():
        for code in examples(text):
            (folder / f"{name}.py").write_text(code)
    done = subprocess.run(
        script(ROOT / "tests/operators/guides_child.py", how, folder),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, f"the child gave no answer: {done.stderr[-2000:]}"
    return json.loads(lines[-1].removeprefix("ANSWER"))


@pytest.mark.parametrize("name", sorted(guides()))
def test_a_guide_is_short_and_of_the_catalogue(name):
    text = guides()[name]
    assert name in CATALOGUE and text.startswith(f"# {name}: ") and len(examples(text)) == 1
    assert text.count("```") == 2, "every code block is one that is compiled"
    assert tokens(text) <= Budgets().guide
    for heading in ("When: ", "How", "Mind: ", "Example: "):
        assert f"\n{heading}" in text or heading == "When: ", heading
    assert not set(line for line in text.split("\n") if len(line) > 130)


@pytest.mark.slow
def test_every_example_compiles_for_sm_90(tmp_path):
    found = answers("compile", tmp_path, TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert found == dict.fromkeys(guides(), "")


def test_every_example_computes_what_it_says(tmp_path):
    assert answers("execute", tmp_path) == dict.fromkeys(guides(), "")
