"""The shipped notes: every example compiles for sm_90 and shows what its text claims; every note says where it is from."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from operators.knowledge.base import NOTES
from operators.knowledge.passages import PASSAGE_CHARS, passages_of
from tests.support.scripts import script

FILES = sorted(NOTES.glob("*.md"))
EXAMPLE = re.compile(r"(?:<!-- compile (?P<how>.*?) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A Python block and the comment before it: `compile KERNEL ARGUMENT=TYPE … CONSTANT=N … num_warps=4 ptx=SIGN,…`."""

    file: str
    how: str
    code: str

    @property
    def name(self) -> str:
        return self.how.split(" ", 1)[0]

    def job(self) -> dict:
        words = self.how.split()[1:]
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        pairs.pop("ptx", None)
        options = {key: int(pairs.pop(key)) for key in ("num_warps", "num_stages") if key in pairs}
        constants = {key: int(value) for key, value in pairs.items() if value.isdecimal()}
        signature = {key: "constexpr" if key in constants else value for key, value in pairs.items()}
        job = {"name": self.name, "file": f"{self.name}.py", "gluon": "gluon" in words}
        return job | {"options": options, "constants": constants, "signature": signature}

    @property
    def signs(self) -> list[str]:
        return [sign for word in self.how.split() if word.startswith("ptx=") for sign in word[4:].split(",")]


EXAMPLES = [Example(f.name, m["how"] or "", m["code"]) for f in FILES for m in EXAMPLE.finditer(f.read_text())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with one file an example."""
    folder = tmp_path_factory.mktemp("notes")
    for example in EXAMPLES:
        (folder / f"{example.name}.py").write_text(example.code)
    (folder / "jobs.json").write_text(json.dumps([example.job() for example in EXAMPLES]))
    return folder


def answers_of(name: str, folder: Path):
    """What a child process prints: compiling and interpreting need settings of their own."""
    child = Path(__file__).with_name(name)
    env = os.environ | {"TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        script(child, folder),
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def compiled(folder) -> dict[str, tuple[str, str]]:
    """Kernel → (PTX, reason why there is none)."""
    return dict(zip((e.name for e in EXAMPLES), map(tuple, answers_of("compile_notes.py", folder)), strict=True))


def test_there_are_examples_and_each_says_how_it_compiles():
    assert len(EXAMPLES) >= 10
    assert len({example.name for example in EXAMPLES}) == len(EXAMPLES)
    assert not [example.file for example in EXAMPLES if not example.how]
    blocks = sum(f.read_text().count("```py") for f in FILES)
    assert blocks == len(EXAMPLES), "every Python block opens with ```python"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_compiles_and_shows_its_signs(example, compiled):
    ptx, reason = compiled[example.name]
    assert not reason, f"{example.file}: {reason}"
    assert not [sign for sign in example.signs if sign not in ptx], example.file


def test_examples_compute_what_they_say(folder):
    errors = answers_of("run_notes.py", folder)
    assert set(errors) == {example.name for example in EXAMPLES if " gluon" not in example.how}
    limits = {
        "mirror_tiles": 0.0,
        "tile_contrast": 2e-3,
        "stacked_gram": 8e-3,
        "shrink_rows": 8e-3,
    }  # the type's rounding
    limits["merged_variance"] = 1e-5  # of values with a mean of a thousand deviations
    for name, error in errors.items():
        assert isinstance(error, float) and error <= limits.get(name, 2e-6), (name, error)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_note_says_where_its_facts_come_from_and_is_in_passages(path):
    title, facts = path.read_text().split("\n", 2)[:2]
    assert title.startswith("# ") and facts.startswith("Facts: ")
    passages = list(passages_of(path.read_text(), path.name))
    assert len(passages) >= 5
    assert max(len(p.text) for p in passages) <= PASSAGE_CHARS, "a section that is split loses its sense"
    assert not [p for p in passages if "<!--" in p.text]
    for page in re.findall(r"docs/[\w/-]+\.md", path.read_text()):
        assert (NOTES.parents[2] / page).exists() or NOTES.parents[2].name == "site-packages", page


def test_notes_name_neither_machines_nor_benchmark_problems():
    text = "\n".join(path.read_text() for path in FILES)
    assert not re.search(r"/work\b|/home/|/tmp/|KernelBench|TritonBench|https?://", text)
