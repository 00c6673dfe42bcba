"""A solution file for KernelBench: its name, its weights, and what its static checker would say."""

from __future__ import annotations

import pytest
import torch

from evo_kernel.app.solutions import write_solution
from evo_kernel.errors import UserError
from evo_kernel.export.solutions import KernelBenchSolution, refused_by_kernelbench
from evo_kernel.tasks.importers.kernelbench import places, skeleton
from tests.support.benchmark import LINEAR, checkout

KERNEL = '''"""A kernel."""
import torch

Model = None
groups = "a name that the problem has too"


def run(x, weight, bias, gain, shift):
    product = torch.empty(x.shape[0], weight.shape[0])
    torch.ops.aten.mm.out(x, weight.t(), out=product)  # raises where gradients are asked for: the harness times so
    made = torch.nn.functional.group_norm(product + bias, 64, gain, shift)
    return torch.where(made > 0, made, 0) / 2
'''


def test_the_file_computes_what_the_problem_computes(tmp_path):
    root = checkout(tmp_path / "checkout")
    small = LINEAR.replace("features, out = 4096, 2048", "features, out = 96, 128")
    path = root / "KernelBench/level2/1_Linear_GroupNorm.py"
    solution = KernelBenchSolution(2, 1, KERNEL, skeleton(small), places(small, path))
    assert solution.file_name(0) == "level_2_problem_1_sample_0_kernel.py"
    theirs, mine = {}, {}
    exec(small, theirs)
    exec(solution.text(), mine)
    torch.manual_seed(42)
    original = theirs["Model"](*theirs["get_init_inputs"]())
    torch.manual_seed(42)
    new = mine["ModelNew"](*theirs["get_init_inputs"]())
    (x,) = theirs["get_inputs"]()
    assert torch.allclose(original(x), new(x), atol=1e-5)
    assert mine["groups"] == "a name that the problem has too"


def test_what_the_static_checker_refuses_is_gone_from_the_problem_and_named_in_the_kernel(tmp_path):
    text = skeleton(LINEAR)
    assert "def forward" not in text and "get_inputs" not in text and refused_by_kernelbench(text) == []
    assert refused_by_kernelbench(
        "def f():\n    try:\n        pass\n    except ValueError:\n        x = 1  # pass\n"
    ) == [
        "try:",
        "except",
        "pass",
    ]


def test_a_sample_is_never_overwritten(tmp_path):
    spec = f"kernelbench:{checkout(tmp_path / 'checkout')}/level2/1"
    write_solution(spec, KERNEL, tmp_path / "mine")
    with pytest.raises(UserError, match="another --sample"):
        write_solution(spec, KERNEL, tmp_path / "mine")
    path, notes = write_solution(spec, KERNEL, tmp_path / "mine", sample=1)
    assert path.name.endswith("sample_1_kernel.py") and not notes
