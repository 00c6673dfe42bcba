"""The built-in seeds: right in the interpreter, compilable for sm_90, in the house style, naive and mendable."""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.probe import within
from evo_kernel.types import CaseKind

HERE = Path(__file__).parent
REGIMES = {
    "nominal": lambda x: x,
    "large": lambda x: x * 64,
    "small": lambda x: x * 1e-3,
    "zeros": lambda x: x * 0,
    "positive": lambda x: x.abs(),
    "ties": lambda x: (x * 2).round() / 2,
}
KNOBS = {
    "attention": ["BLOCK_M=16", "BLOCK_N=64"],
    "linear_gelu": ["BLOCK_M=16", "BLOCK_N=64", "BLOCK_K=128", "GELU_BLOCK=1024"],
    "matmul": ["BLOCK_M=64", "BLOCK_N=16", "BLOCK_K=128"],
}
NAMES = ("attention", "cross_entropy", "layernorm", "linear_gelu", "matmul", "rmsnorm", "softmax")


def child(script, *arguments):
    command = [sys.executable, "-P", str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def interpret(task, rounds, folder, *knobs):
    """The seed's outputs for a list of input tuples."""
    torch.save(rounds, folder / "inputs")
    child("seed_interpret.py", task.path.parent / "seed.py", folder / "inputs", folder / "outputs", *knobs)
    outputs = torch.load(folder / "outputs")
    assert len(outputs) == len(rounds)
    return outputs


def draw(task, case, seed, regime="nominal"):
    inputs = task.inputs(case, torch.Generator().manual_seed(seed), "cpu")
    return tuple(REGIMES[regime](value) if value.is_floating_point() else value for value in inputs)


def passes(task, inputs, outputs):
    honest = task.outputs(*inputs)
    assert [part.dtype for part in outputs] == [part.dtype for part in honest]
    return within(task, outputs, honest, task.truth(*inputs))


def test_the_built_in_tasks_are_these():
    assert builtin_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_right_on_every_check_case(name, tmp_path):
    """Against the float64 reference, within the task's own tolerance, in every regime of values."""
    task = load(name)
    asked = [(case, regime) for case in task.cases_of(CaseKind.CHECK) for regime in REGIMES]
    rounds = [draw(task, case, seed, regime) for seed, (case, regime) in enumerate(asked)]
    for ask, inputs, outputs in zip(asked, rounds, interpret(task, rounds, tmp_path), strict=True):
        assert passes(task, inputs, outputs), ask


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_right_with_other_knobs(name, tmp_path):
    task = load(name)
    rounds = [draw(task, case, 0) for case in task.cases_of(CaseKind.CHECK)]
    knobs = KNOBS.get(name, ["BLOCK=64", "NUM_WARPS=8"])
    for inputs, outputs in zip(rounds, interpret(task, rounds, tmp_path, *knobs), strict=True):
        assert passes(task, inputs, outputs)


def test_a_wrong_seed_would_be_seen(tmp_path):
    """The same check, on a softmax whose sum is off by one part in a hundred thousand."""
    task = load("softmax")
    (tmp_path / "seed.py").write_text(task.seed.text.replace("/ row_sum", "/ (row_sum * 1.00001)"))
    wrong = replace(task, path=tmp_path / "task.py")
    rounds = [draw(task, task.cases_of(CaseKind.CHECK)[1], 0)]
    assert not passes(task, rounds[0], interpret(wrong, rounds, tmp_path)[0])


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
