"""The built-in seeds: right on the CPU, compilable for sm_90, in the house style, naive and mendable."""

import ast
import hashlib

import pytest
import torch

from evo_kernel.fitness.correctness import regimes
from evo_kernel.tasks.builtin import FAMILIES, builtin_names, text_of
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.probe import within
from evo_kernel.tasks.task import TensorSpec
from evo_kernel.types import CaseKind
from tests.support.nan import with_nan
from tests.tasks.children import Child

TILES = {"BLOCK_M": 16, "BLOCK_N": 64}
KNOBS = {
    "attention": TILES,
    "attention_backward": TILES,
    "attention_causal": TILES,
    "attention_full": TILES,
    "conv2d": TILES | {"BLOCK_K": 32},
    "conv2d_bf16": TILES | {"BLOCK_K": 32},
    "conv2d_channels_last": TILES | {"BLOCK_K": 32},
    "conv2d_tf32": TILES | {"BLOCK_K": 32},
    "decode_attention": {"BLOCK_N": 64},
    "fp8_matmul": TILES | {"BLOCK_K": 64},
    "gqa": TILES,
    "grouped_matmul": TILES | {"BLOCK_K": 64},
    "int4_matmul": TILES | {"BLOCK_K": 64},
    "layernorm_backward": {"BLOCK": 64, "COLUMN_BLOCK": 32},
    "linear_gelu": TILES | {"BLOCK_K": 128, "GELU_BLOCK": 1024},
    "matmul": {"BLOCK_M": 64, "BLOCK_N": 16, "BLOCK_K": 128},
    "qk_norm": {"NUM_WARPS": 2},
    "rmsnorm_backward": {"BLOCK": 64, "COLUMN_BLOCK": 32},
    "rotary": {"NUM_WARPS": 2},
    "router_softmax": {"NUM_WARPS": 2},
    "shared_prompt": TILES,
    "shared_prompt_backward": TILES,
}  # fmt: skip
NAMES = (
    "add_rmsnorm", "attention", "attention_backward", "attention_causal", "attention_full", "conv2d", "conv2d_bf16",
    "conv2d_channels_last", "conv2d_tf32", "cross_entropy", "cross_entropy_backward", "decode_attention", "fp8_matmul",
    "gqa", "grouped_matmul", "int4_matmul", "layernorm", "layernorm_backward", "linear_gelu", "matmul", "qk_norm", "rmsnorm",
    "rmsnorm_backward", "rotary", "router_softmax", "shared_prompt", "shared_prompt_backward", "softmax", "swiglu",
)  # fmt: skip
SEEDS = {name: text_of(name, "seed.py") for name in NAMES}
TWO_LAUNCHES = {
    "attention_backward", "layernorm_backward", "linear_gelu", "qk_norm",
    "rmsnorm_backward", "rotary", "shared_prompt_backward",
}  # fmt: skip


@pytest.fixture(scope="module")
def executor():
    child = Child("seed_execute.py")
    yield child
    child.close()


@pytest.fixture(scope="module")
def compiler():
    child = Child("seed_compile.py")
    yield child
    child.close()


def executed(executor, text, rounds, folder):
    """A seed's outputs for a list of (knobs, input tuple)."""
    path = folder / "seed.py"
    path.write_text(text)
    torch.save(rounds, folder / "inputs")
    executor.ask(seed=str(path), inputs=str(folder / "inputs"), outputs=str(folder / "outputs"))
    outputs = torch.load(folder / "outputs")
    assert len(outputs) == len(rounds)
    return outputs


def draw(task, case, seed, regime="nominal"):
    return regimes.apply(regime, task.inputs(case, torch.Generator().manual_seed(seed), "cpu"))


def passes(task, inputs, outputs):
    honest = task.outputs(*inputs)
    if task.tolerance.precision == "tf32":  # as tensor cores read operands
        f32 = [isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in inputs]
        truncated = [(v.contiguous().view(torch.int32) & -0x2000).view(v.dtype) if is_f32 else v
                     for v, is_f32 in zip(inputs, f32, strict=True)]  # fmt: skip
        honest = task.outputs(*truncated)
    assert [part.dtype for part in outputs] == [part.dtype for part in honest]
    return within(task, outputs, honest, task.truth(*inputs))


def test_the_built_in_tasks_are_these():
    assert builtin_names() == NAMES


TEXTS = {
    "attention_causal": "1041a20b485ac0aa",
    "attention_full": "c982ce818c20f96d",
    "conv2d": "6d9d74de8fdda902",
    "conv2d_bf16": "6616b6d3331eee98",
    "conv2d_channels_last": "813d1974dce123e4",
    "conv2d_tf32": "38b3667b612d2510",
    "gqa": "72bb96e8466b1ed5",
    "add_rmsnorm": "b5e6a3f5a044c554",
    "layernorm": "3fe7afb66de3d0a4",
    "layernorm_backward": "9f6b4c7661d2cb72",
    "rmsnorm": "9784b3a2a49a4152",
    "rmsnorm_backward": "5c22922ac1bd15e3",
    "shared_prompt": "a972e8c890977826",
    "shared_prompt_backward": "91b47612fb1444ac",
}
"""Of a family's tasks: the sha256 of task and first kernel as they were when each had files of its own, from its start."""


def test_texts_of_a_family_are_those_that_scores_belong_to():
    """A population that an earlier version made resumes only where the task's text is the same, byte by byte."""
    assert sorted(TEXTS) == sorted(name for members in FAMILIES.values() for name in members)
    for name, wanted in TEXTS.items():
        made = text_of(name, "task.py") + text_of(name, "seed.py")
        assert hashlib.sha256(made.encode()).hexdigest().startswith(wanted), name


def asked_of(name, cases):
    """(knobs, case, regime): every case, every regime on one case each, and other knobs on the odd sizes of one."""
    every = [({}, cases[number % len(cases)], regime) for number, regime in enumerate(regimes.REGIMES)]
    nominal = [({}, case, "nominal") for case in cases[1:]]
    knobs = KNOBS.get(name, {"BLOCK": 64, "NUM_WARPS": 8})
    return [*every, *nominal, (knobs, cases[min(1, len(cases) - 1)], "nominal")]


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_is_right_on_every_check_case(name, executor, tmp_path):
    """Against the float64 reference, within the task's own tolerance: in every regime of values, and with other knobs."""
    task = load(name)
    asked = asked_of(name, task.cases_of(CaseKind.CHECK))
    rounds = [(knobs, draw(task, case, seed, regime)) for seed, (knobs, case, regime) in enumerate(asked)]
    made = executed(executor, SEEDS[name], rounds, tmp_path)
    for ask, (_, inputs), outputs in zip(asked, rounds, made, strict=True):
        assert passes(task, inputs, outputs), ask


@pytest.mark.parametrize("name", ["softmax", "router_softmax", "cross_entropy", "swiglu", "rmsnorm", "layernorm"])
def test_nan_of_an_input_reaches_a_seeds_outputs_where_pytorch_has_it(name, executor, tmp_path):
    """Maxima of exponents may drop it: exp(NaN - m) is NaN whatever m is, and so is the sum."""
    task = load(name)
    inputs = tuple(with_nan(draw(task, task.cases_of(CaseKind.CHECK)[1], 0)))
    (made,) = executed(executor, task.seed.text, [({}, inputs)], tmp_path)
    for mine, eager in zip(made, task.outputs(*inputs), strict=True):
        assert torch.equal(mine.isnan(), eager.isnan()) and eager.isnan().any()


def test_a_wrong_seed_would_be_seen(executor, tmp_path):
    """The same check, on a softmax whose sum is off by one part in a hundred thousand."""
    task = load("softmax")
    wrong = task.seed.text.replace("/ row_sum", "/ (row_sum * 1.00001)")
    inputs = draw(task, task.cases_of(CaseKind.CHECK)[1], 0)
    assert not passes(task, inputs, executed(executor, wrong, [({}, inputs)], tmp_path)[0])


def specs_of(task, case):
    """The inputs of a case as seed_compile.py takes them."""
    known = task.host_values(case)
    specs = enumerate(task.input_specs(case))
    return [
        spec if not isinstance(spec, TensorSpec)
        else [spec.dtype, spec.shape, *([known[n].tolist()] if n in known else [])]
        for n, spec in specs
    ]  # fmt: skip


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_compiles_for_sm_90_at_real_sizes(name, compiler, tmp_path):
    task = load(name)
    real = task.cases_of(CaseKind.SEARCH) + task.cases_of(CaseKind.CONFIRM)
    # What the host knows is drawn with all other inputs: gigabytes, at real sizes. Heads of 128 are the last check case's.
    cases = task.cases_of(CaseKind.CHECK)[::-1] if task.host_known else real
    path = tmp_path / "seed.py"
    path.write_text(SEEDS[name])
    launches = compiler.ask(seed=str(path), specs=[specs_of(task, case) for case in cases])
    assert len(launches) == len(cases) * (2 if name in TWO_LAUNCHES else 1)
    for launch in launches:
        assert launch["code"] > 1000
        assert launch["shared"] <= 49152  # no opt-in shared memory: a seed is naive
        assert all(size <= 65535 for size in launch["grid"][1:])


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_keeps_the_house_style(name):
    """What the rewriter and the tuner rely on: knobs are module constants, pointers end in _ptr, `run` is the door."""
    tree = ast.parse(SEEDS[name])
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
    assert len(launched) >= len(kernels)
    used = {node.id for node in ast.walk(functions["run"]) if isinstance(node, ast.Name)}
    assert knobs <= used
