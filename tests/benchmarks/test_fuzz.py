"""The fuzzer's own parts, and a sample of what GPUs computed for its programs, against the executor of Triton IR."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fuzz.__main__ import RESULTS
from benchmarks.fuzz.comparing import difference, executed, judged
from benchmarks.fuzz.generate import from_seed
from benchmarks.fuzz.programs import Output
from benchmarks.fuzz.stored import Case, read, write
from benchmarks.fuzz.values import TYPES, Recipe, decode

SAMPLE = 300  # cases of a file that a test run looks at, at most: those of every Nth seed
COPY = """module {
  tt.func public @kernel(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<f32>) {
    %0 = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    %3 = tt.load %2 : tensor<8x!tt.ptr<f32>>
    %4 = tt.splat %arg1 : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %5 = tt.addptr %4, %0 : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    tt.store %5, %3 : tensor<8x!tt.ptr<f32>>
    tt.return
  }
}
"""


def _copying(results: tuple[bytes, ...] = (), **changes: object) -> Case:
    buffers = (Recipe("f32", 8, "edge", 5), Recipe("f32", 8, "filler"))
    case = Case(1, 1, "3.6.0", COPY, ("*fp32", "*fp32"), (1, 1, 1), buffers, ((0, 0), (1, 0)), (Output(1),), ("load",))
    return replace(case, results=results, **changes)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.xz")), ids=lambda path: path.name)
def test_the_executor_agrees_with_what_is_stored(path: Path) -> None:
    cases = list(read(path))
    assert all(case.results or case.undefined for case in cases)
    verdicts = [judged(case) for case in cases[:: math.ceil(len(cases) / SAMPLE)]]
    assert len(verdicts) >= 100
    assert [verdict for verdict in verdicts if verdict.kind != "same"] == []


def test_a_result_that_differs_is_seen() -> None:
    right = _copying().buffers[0].bytes()
    assert judged(_copying((right,))).kind == "same"
    wrong = bytes([right[0] ^ 1]) + right[1:]
    assert judged(_copying((wrong,))).kind == "differs"


def test_a_fault_that_is_not_found_is_seen() -> None:
    assert judged(_copying(undefined="nothing is wrong here")).kind == "missed"


def test_an_access_out_of_bounds_is_a_finding() -> None:
    short = (Recipe("f32", 7, "edge", 5), Recipe("f32", 8, "filler"))
    assert judged(_copying(buffers=short)).kind == "finding"


def test_bounds_of_errors() -> None:
    def of(*numbers: float) -> bytes:
        return np.array(numbers, np.float32).tobytes()

    assert difference("f32", of(1.0, np.nan, -0.0), of(1.0, np.nan, 0.0), 0.0, 0.0) == ""
    assert difference("f32", of(1.0), of(1.0 + 2**-20), 0.0, 0.0) != ""
    assert difference("f32", of(1.0), of(1.0 + 2**-20), 2.0**-19, 0.0) == ""
    assert difference("f32", of(1.0), of(np.nan), 1.0, 1.0) != ""
    assert difference("f32", of(np.inf), of(1e30), 1e-3, 1.0) != ""
    assert difference("i32", bytes([1, 0, 0, 0]), bytes([2, 0, 0, 0]), 1.0, 1.0) != ""


@pytest.mark.parametrize("name", [t.name for t in TYPES.values() if t.kind in "f8"])
def test_contents_of_float_buffers(name: str) -> None:
    small = decode(TYPES[name], Recipe(name, 300, "small", 1).bytes())
    assert set(small) <= set(range(-8, 17 if name not in ("e5",) else 9)) and len(set(small)) > 10
    unit = decode(TYPES[name], Recipe(name, 300, "unit", 1).bytes())
    assert np.all(np.abs(unit) <= 1) and np.all(unit != 0)
    if name in ("f16", "f32", "f64"):
        exact = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[name]
        data = Recipe(name, 300, "bits", 1).bytes()
        assert np.array_equal(decode(TYPES[name], data), np.frombuffer(data, exact).astype(np.float64), equal_nan=True)


def test_a_seed_is_one_program() -> None:
    programs = [from_seed(seed) for seed in range(40)]
    assert programs == [from_seed(seed) for seed in range(40)]
    assert len({program.source for program in programs}) == 40
    assert all(program.outputs for program in programs)


def test_cases_survive_the_file(tmp_path: Path) -> None:
    case = _copying((b"\0\1\2",), args=((0, 0), 2.5))
    write(tmp_path / "cases.xz", [case])
    assert list(read(tmp_path / "cases.xz")) == [case]


def test_executed_returns_what_was_stored() -> None:
    case = _copying()
    assert executed(case) == ([case.buffers[0].bytes()], "")
