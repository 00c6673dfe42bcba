"""A population of the first schema is opened, resumed and exported by this version.

first_schema.db.xz: six candidates that `run scaled_add.py --device cpu --set budget.evaluations=6 --set width=1` of
commit e757372 left; the host's name and its paths are taken out.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from tests.support.commands import evo, told

TASK = '''"""A small sum of two scaled vectors."""

SEED = "seed.py"
CASES = {
    "check": [{"n": 5}, {"n": 300}],
    "search": [{"n": 4096}],
    "confirm": [{"n": 5000}],
}


def inputs(case, generator, device):
    import torch

    return tuple(torch.randn(case["n"], generator=generator, device=device) for _ in range(2))


def reference(x, y):
    return 2.0 * x + y
'''
SEED = """import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, 2.0 * tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def run(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), BLOCK),)](x, y, out, x.numel(), BLOCK)
    return out
"""


def test_a_population_of_the_first_schema_opens_resumes_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(lzma.decompress(Path(__file__).with_name("first_schema.db.xz").read_bytes()))
    (tmp_path / "scaled_add.py").write_text(TASK)
    (tmp_path / "seed.py").write_text(SEED)
    monkeypatch.chdir(tmp_path)
    before = told(evo("status", path, "--json"))
    assert (before["candidates"], before["verdicts"], before["champion"]["candidate"]) == (6, {"passed": 6}, 1)
    assert len(told(evo("tree", path, "--all", "--json"))["candidates"]) == 6

    more = ["--set", "budget.evaluations=9", "--set", "judge.tune_plans=0"]
    resumed = told(evo("resume", path, "--device", "cpu", *more, "--json"))
    assert resumed["confirmed"] and resumed["cause"] == "budget", resumed
    after = told(evo("status", path, "--json"))
    assert after["sessions"] == 2 and after["candidates"] > 6 and after["champion"]["confirmed"]
    assert after["environment"]["judge"] > before["environment"]["judge"]

    written = told(evo("export", path, "--to", tmp_path / "out", "--device", "cpu", "--json"))
    assert written["candidate"] == after["champion"]["candidate"]
    assert (tmp_path / "out" / "scaled_add_kernel" / "provenance.json").is_file()
