"""A solution file for TritonBench: what answers which call, what its first step leaves of it, and its own metric."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
import torch

from evo_kernel.cli.import_tasks import solution_text
from evo_kernel.export.tritonbench import TritonBenchSolution, write_solution
from evo_kernel.tasks.calls import CUT
from evo_kernel.tasks.importers.stdout_metric import Printed, printed
from evo_kernel.tasks.importers.tritonbench_solution import Solved, solved
from evo_kernel.tasks.loading import load
from evo_kernel.types import Source
from tests.support.more_benchmarks import DOUBLED, tritonbench

ADDED = "CALLS = []\n\n\ndef run(x, y):\n    CALLS.append(1)\n    return x + y\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tritonbench(tmp_path_factory.mktemp("tritonbench"))
    reference, _, test = DOUBLED.partition(CUT)
    seeded = test.replace("    results = []", "    torch.manual_seed(0)\n    results = []")
    told = f"{reference}\n\nTOLD = 'doubled:'\n{CUT}{seeded}\nprint(TOLD, result_gold)\n"
    (root / "data/TritonBench_G_v1/told.py").write_text(told)
    return root


def solution_of(parts: Solved, kernel: str) -> TritonBenchSolution:
    returned = parts.returned
    return TritonBenchSolution(
        parts.name, parts.entry, kernel, parts.reference, parts.form, parts.test, parts.instruction, parts.label,
        returned.text, returned.writes,
    )  # fmt: skip


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
    parts = solved(f"{root}/T/scaled_add")
    solution = solution_of(parts, ADDED)
    code, test = write_solution(solution, tmp_path, CUT).read_text().split(CUT)
    names: dict[str, Any] = {"print": lambda *words: None}
    exec(kept(code) + "\n" + test.replace('"cuda"', '"cpu"').replace(".cuda()", ""), names)
    assert (len(names["_names"]("kernel")["CALLS"]), parts.left) == (2, 1)
    assert torch.equal(names["test_results"]["test_case_1"], torch.tensor([4.0, 2.0]))
    out = torch.zeros(2)
    assert names["scaled_add"](torch.ones(2), torch.ones(2), 1.0, "sum", out) is out and out.eq(2).all()
    line = json.loads((tmp_path / "predictions.jsonl").read_text())
    assert line["predict"] == solution.code() and "Functional Description: Adds.\nWrapper Entry" in line["instruction"]


def test_what_is_written_to_an_argument_is_written_to_it(root):
    parts = solved(f"{root}/T/fill_rows")
    assert parts.returned.writes == ((0, 1),)
    names: dict[str, Any] = {}
    exec(first_step(solution_of(parts, "def run(x, rows):\n    return x + 1, x + 2\n").code()), names)
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


def test_its_own_metric_runs_both_scripts_and_compares_what_they_print(root, tmp_path):
    parts = solved(f"{root}/G/told")
    assert (parts.returned.text, parts.returned.writes) == ("None", ((2, 0),))
    own = load(f"tritonbench:{root}/G/told").seed
    assert own is not None and solution_of(parts, own.text).others() == ["TOLD"]
    written = [solution_text(f"tritonbench:{root}/G/told", Source(text), "cpu")
               for text in (own.text, own.text.replace("* 2", "* 3"))]  # fmt: skip
    assert "doubled" in own.text and all("tl.load" not in line.partition("#")[0] for line in written[0].splitlines())
    mine = write_solution(solution_of(parts, written[0]), tmp_path, CUT)
    reference = root / "data/TritonBench_G_v1/told.py"
    other = write_solution(solution_of(parts, written[1]), tmp_path / "wrong", CUT)
    broken = tmp_path / "broken.py"
    broken.write_text("print('doubled:')\nimport no_such_module_of_anyone\n")
    right, wrong, failing = printed(reference, [mine, other, broken], "cpu")
    assert (right.runs, right.same, right.prints, right.steady) == (True, True, True, True), right
    assert wrong.runs and not wrong.same and "something else than" in wrong.sentence
    assert not failing.runs and "no_such_module_of_anyone" in failing.sentence


def test_its_own_metric_says_where_it_says_nothing():
    assert "any script that runs passes" in Printed(runs=True, same=True, prints=False, steady=True).sentence
    assert "nothing can pass" in Printed(runs=True, same=False, prints=True, steady=False).sentence
