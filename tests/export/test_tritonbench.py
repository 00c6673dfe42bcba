"""A solution file for TritonBench: what answers which call, what its first step leaves of it, and its own metric."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
import torch

from evo_kernel.app.solutions import solution_text, tritonbench_solution, write_tritonbench
from evo_kernel.export.solutions import TritonBenchSolution
from evo_kernel.tasks.calls import CUT
from evo_kernel.tasks.loading import load
from tests.support.tritonbench import DOUBLED, tritonbench

ADDED = "CALLS = []\n\n\ndef run(x, y):\n    CALLS.append(1)\n    return x + y\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tritonbench(tmp_path_factory.mktemp("tritonbench"))
    reference, _, test = DOUBLED.partition(CUT)
    seeded = test.replace("    results = []", "    torch.manual_seed(0)\n    results = []")
    told = f"{reference}\n\nTOLD = 'doubled:'\n{CUT}{seeded}\nprint(TOLD, result_gold)\n"
    (root / "data/TritonBench_G_v1/told.py").write_text(told)
    return root


def first_step(code: str) -> str:
    """What step 0 for channel G keeps of what is predicted: imports, and functions wherever they are."""
    imports: list[str] = []
    functions: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef):
            functions.append(ast.unparse(node))
    return "\n".join([*imports, *functions])


@pytest.mark.parametrize("kept", [str, first_step])
def test_a_solution_answers_the_benchmarks_test_and_says_what_it_leaves(root, tmp_path, kept):
    solution, left = tritonbench_solution(f"tritonbench:{root}/T/scaled_add", ADDED)
    code, test = write_tritonbench(solution, tmp_path).read_text().split(CUT)
    names: dict[str, Any] = {"print": lambda *words: None}
    exec(kept(code) + "\n" + test.replace('"cuda"', '"cpu"').replace(".cuda()", ""), names)
    assert (len(names["_names"]("kernel")["CALLS"]), left) == (2, 1)
    assert torch.equal(names["test_results"]["test_case_1"], torch.tensor([4.0, 2.0]))
    out = torch.zeros(2)
    assert names["scaled_add"](torch.ones(2), torch.ones(2), 1.0, "sum", out) is out and out.eq(2).all()
    line = json.loads((tmp_path / "predictions.jsonl").read_text())
    assert line["predict"] == solution.code() and "Functional Description: Adds.\nWrapper Entry" in line["instruction"]


def test_what_is_written_to_an_argument_is_written_to_it(root):
    solution, _ = tritonbench_solution(
        f"tritonbench:{root}/T/fill_rows", "def run(x, rows):\n    return x + 1, x + 2\n"
    )
    assert solution.writes == ((0, 1),)
    names: dict[str, Any] = {}
    exec(first_step(solution.code()), names)
    x = torch.zeros(4, 3)
    made = names["fill_rows"](x, torch.tensor([0]), 0.0)
    assert made.eq(1).all() and x.eq(2).all()


def test_a_solution_of_an_autograd_function_has_its_apply_and_what_else_the_test_uses():
    reference = (
        "import math\nHALF = 0.5\nclass Twice:\n    kind = 'x'\n    def apply(*args):\n        return args[0] * 2\n"
    )
    test = "Twice.apply(math.pi * HALF)"
    solution = TritonBenchSolution(
        "twice", "Twice.apply", "def run(x):\n    return x + x\n", reference, (None,), test, ""
    )
    names: dict[str, Any] = {}
    exec(first_step(solution.code()), names)
    assert names["Twice"].apply(torch.ones(2)).tolist() == [2.0, 2.0] and names["Twice"].apply(3) == 6
    assert (names["HALF"], names["math"].pi > 3, names["Twice"].kind) == (0.5, True, "x")


def test_what_the_test_uses_beside_the_function_is_told(root):
    own = load(f"tritonbench:{root}/G/told").seed
    assert own is not None
    solution, _ = tritonbench_solution(f"tritonbench:{root}/G/told", own.text)
    assert (solution.result, solution.writes, solution.others()) == ("None", ((2, 0),), ["TOLD"])
    written = solution_text(f"tritonbench:{root}/G/told", own, "cpu")
    assert "doubled" in own.text and all("tl.load" not in line.partition("#")[0] for line in written.splitlines())
