"""The built-in seeds: right in the interpreter, compilable for sm_90, in the house style, naive and mendable."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.probe import within
from evo_kernel.types import CaseKind

HERE = Path(__file__).parent
SCALES = (1.0, 64.0, 1e-3, 0.0)
NAMES = ("attention", "cross_entropy", "layernorm", "linear_gelu", "matmul", "rmsnorm", "softmax")


def child(script, *arguments):
    command = [sys.executable, "-P", str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def scaled(value, scale):
    return value * scale if value.is_floating_point() else value


def test_the_built_in_tasks_are_these():
    assert builtin_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_right_on_every_check_case(name, tmp_path):
    """Against the float64 reference, within the task's own tolerance, also on large, small and zero inputs."""
    task = load(name)
    drawn = []
    for seed, case in enumerate(task.cases_of(CaseKind.CHECK)):
        inputs = task.inputs(case, torch.Generator().manual_seed(seed), "cpu")
        drawn += [(case, scale, tuple(scaled(value, scale) for value in inputs)) for scale in SCALES]
    torch.save([inputs for _, _, inputs in drawn], tmp_path / "inputs")
    child("seed_interpret.py", task.path.parent / "seed.py", tmp_path / "inputs", tmp_path / "outputs")
    results = torch.load(tmp_path / "outputs")
    assert len(results) == len(drawn)
    for (case, scale, inputs), outputs in zip(drawn, results, strict=True):
        honest = task.outputs(*inputs)
        assert [part.dtype for part in outputs] == [part.dtype for part in honest]
        assert within(task, outputs, honest, task.truth(*inputs)), f"{case.name}, inputs times {scale}"


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_compiles_for_sm_90_at_real_sizes(name):
    task = load(name)
    cases = task.cases_of(CaseKind.SEARCH)
    specs = [[[spec.dtype, spec.shape] for spec in task.input_specs(case)] for case in cases]
    launches = json.loads(child("seed_compile.py", task.path.parent / "seed.py", json.dumps(specs)))
    assert len(launches) == len(cases) * (2 if name == "linear_gelu" else 1)
    for launch in launches:
        assert launch["code"] > 1000
        assert launch["shared"] <= 49152  # no opt-in shared memory: a seed is naive
        assert all(size <= 65535 for size in launch["grid"][1:])


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_keeps_the_house_style(name):
    """What the rewriter and the tuner rely on: knobs are module constants, pointers end in _ptr, `run` is the door."""
    seed = load(name).seed
    assert seed is not None
    tree = ast.parse(seed.text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    kernels = {key: node for key, node in functions.items() if node.decorator_list}
    assert "run" in functions and kernels
    assert all(key.endswith("_kernel") for key in kernels)
    knobs = {
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
    }
    assert any(knob.endswith("NUM_WARPS") for knob in knobs)
    launched = [
        node for node in ast.walk(functions["run"]) if isinstance(node, ast.keyword) and node.arg == "num_warps"
    ]
    assert len(launched) == len(kernels)
    used = {node.id for node in ast.walk(functions["run"]) if isinstance(node, ast.Name)}
    assert knobs <= used


@pytest.mark.parametrize("name", NAMES)
def test_baselines_compute_what_the_reference_does(name):
    task = load(name)
    case = task.cases_of(CaseKind.CHECK)[1]
    inputs = task.inputs(case, torch.Generator().manual_seed(3), "cpu")
    expected = task.outputs(*inputs)[0].float()
    assert "eager" in task.baselines
    for label, baseline in task.baselines.items():
        got = baseline(*inputs)
        assert got.dtype == task.outputs(*inputs)[0].dtype, label
        assert torch.allclose(got.float(), expected, rtol=0.03, atol=0.03), label
