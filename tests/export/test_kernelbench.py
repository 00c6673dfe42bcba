"""A solution file for KernelBench: its name, its weights, and what its static checker would say."""

from __future__ import annotations

import torch

from evo_kernel.errors import UserError
from evo_kernel.export.kernelbench import KernelBenchSolution, refused, write_solution
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
    (root / "KernelBench/level2/1_Linear_GroupNorm.py").write_text(small)
    spec = f"kernelbench:{root}/level2/1"
    solution = KernelBenchSolution(2, 1, KERNEL, skeleton(small), places(spec))
    path = write_solution(solution, tmp_path / "runs/mine", 0)
    assert path.name == "level_2_problem_1_sample_0_kernel.py"
    theirs, mine = {}, {}
    exec(small, theirs)
    exec(path.read_text(), mine)
    torch.manual_seed(42)
    original = theirs["Model"](*theirs["get_init_inputs"]())
    torch.manual_seed(42)
    new = mine["ModelNew"](*theirs["get_init_inputs"]())
    (x,) = theirs["get_inputs"]()
    assert torch.allclose(original(x), new(x), atol=1e-5)
    assert mine["groups"] == "a name that the problem has too"


def test_what_the_static_checker_refuses_is_gone_from_the_problem_and_named_in_the_kernel(tmp_path):
    text = skeleton(LINEAR)
    assert "def forward" not in text and "get_inputs" not in text and refused(text) == []
    assert refused("def f():\n    try:\n        pass\n    except ValueError:\n        x = 1  # pass\n") == [
        "try:",
        "except",
        "pass",
    ]


def test_a_sample_is_never_overwritten(tmp_path):
    solution = KernelBenchSolution(1, 2, "def run(x):\n    return x\n", "class Model:\n    ...", [])
    write_solution(solution, tmp_path, 0)
    try:
        write_solution(solution, tmp_path, 0)
    except UserError as error:
        assert "--sample" in str(error)
    else:
        raise AssertionError("the first sample is gone")
    assert write_solution(solution, tmp_path, 1).name.endswith("sample_1_kernel.py")
