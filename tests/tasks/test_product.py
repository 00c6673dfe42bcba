"""The template of a product and what follows it: right at sizes that descriptors serve and at others, refused elsewhere."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch
import torch.nn.functional as F

from evo_kernel.errors import LoweringError
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.first import template_of
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.lowering.product import product_template
from evo_kernel.types import Measurement, Purpose, Source, Status
from evo_kernel.types.gpus import is_hopper
from tests.support.compiled import results_of
from tests.support.scripts import script
from tests.tasks.test_lowering import CHILD, relative

TASK = """
import torch
import torch.nn.functional as F

CASES = {{"check": [{{"m": 5, "n": 33, "k": 37}}], "search": [{{"m": 40, "n": 136, "k": 72}}]}}


def inputs(case, generator, device):
    m, n, k = case.values()
    return tuple(torch.randn(*shape, generator=generator, device=device).{dtype} for shape in ({shapes},))


def reference({names}):
    return {reference}
"""
TWO_PROCESSORS = """
import types, torch
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=2)
"""
SERVED = {
    "product": ("a, b", "(m, k), (k, n)", "a @ b"),
    "linear_gelu": ("x, w, bias", "(m, k), (n, k), (n,)", "F.gelu(F.linear(x, w, bias), approximate='tanh')"),
    "batched_rows": ("x, w, rest", "(2, m, k), (n, k), (2, m, n)", "F.silu(F.linear(x, w)) * 0.5 + rest"),
    "convolution": (
        "x, w, bias, rest",
        "(2, 5, m, k), (n, 3, 3, k), (n,), (2, 3, m, n)",
        "F.relu(F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), bias, (2, 1), 1).permute(0, 2, 3, 1) + rest)",
    ),
    "scaled_rows": ("x, w, scale, acc", "(m, k), (k, n), (m, 1), (n,)", "((x @ w).float() * scale + acc).relu()"),
}
REFUSED = {
    "two": ("a, b, c", "(m, k), (k, n), (n, n)", "a @ b @ c"),
    "turned": ("a, b", "(k, m), (k, n)", "a.T @ b"),
    "changed": ("a, b", "(m, k), (k, n)", "a.relu() @ b"),
    "reduced": ("a, b", "(m, k), (k, n)", "torch.softmax(a @ b, -1)"),
    "several": ("a, b", "(m, k), (k, n)", "(a @ b, a.sum())"),
    "planes": ("x, w", "(2, k, 5, m), (n, k, 3, 3)", "F.conv2d(x, w)"),
    "to_planes": (
        "x, w",
        "(2, 5, m, k), (n, 3, 3, k)",
        "F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)).contiguous()",
    ),
}


def task(folder, name, names, shapes, reference, dtype="bfloat16()"):
    path = folder / f"{name}_task.py"
    path.write_text(TASK.format(names=names, shapes=shapes, reference=reference, dtype=dtype))
    return load(path)


def passes(one, source):
    """It is scored, beside times that are given: what other first kernels take is no test's subject here."""
    setattr(one.reference_function, "compiled_baseline", False)
    with open_judge(one, device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        for case in one.cases:
            judge.baselines.know(Measurement(case.name, "", 100.0, 0.0, 0, 100.0, 100.0, {"given": 100.0}))
        evaluation = judge.evaluate(source, Purpose.SCORE)
    assert evaluation.status is Status.PASSED, evaluation.reason


def test_templates_compute_the_reference(tmp_path):
    modules, drawn = tmp_path / "modules", {}
    modules.mkdir()
    for name, entry in SERVED.items():
        one = task(tmp_path, name, *entry)
        text = product_template(one, "gluon" if name == "convolution" else "triton").text
        assert text.count("tl.make_tensor_descriptor(") == 3 * (name != "convolution")
        (modules / f"{name}.py").write_text(text)
        drawn[name] = [list(one.inputs(case, torch.Generator().manual_seed(3), "cpu")) for case in one.cases]
        torch.save(drawn[name], modules / f"{name}.in")
    (tmp_path / "child.txt").write_text(TWO_PROCESSORS + CHILD)
    subprocess.run(script(tmp_path / "child.txt", *modules.glob("*.py")), check=True, timeout=300)
    for name, (names, _, reference) in SERVED.items():
        outs = torch.load(modules / f"{name}.out", weights_only=True)
        assert isinstance(outs, list), outs
        for inputs, (mine,) in zip(drawn[name], outs, strict=True):
            scope = dict(zip(names.split(", "), (value.double() for value in inputs), strict=True))
            truth = eval(reference.replace(".float()", ""), {"F": F, "torch": torch}, scope)
            assert mine.shape == truth.shape and relative(mine, truth) < 0.01, name


def test_the_gluon_form_passes_the_judge(tmp_path):
    one = task(tmp_path, "scaled_rows", *SERVED["scaled_rows"])
    source = product_template(one, "gluon")
    assert "warp_specialize" in source.text
    passes(one, source)


def test_the_gluon_form_is_for_hopper_alone():
    assert all(map(is_hopper, ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB")))
    assert not any(map(is_hopper, ("NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA L40S", "sm_90")))  # sm_90: modeled


def test_gluon_lacks_some_operations(tmp_path):
    other = task(tmp_path, "acos", "a, b", "(m, k), (k, n)", "torch.acos(a @ b)")
    assert template_of(other) is not None and template_of(other, "gluon") is None


@pytest.mark.parametrize("name", REFUSED)
def test_other_references_have_no_template(tmp_path, name):
    with pytest.raises(LoweringError, match="not one product"):
        product_template(task(tmp_path, name, *REFUSED[name]))


PARTED = """
import torch

CASES = {"check": [{"m": 20, "n": 30, "k": 5}], "search": [{"m": 264, "n": 256, "k": 72}]}


def inputs(case, generator, device):
    m, n, k = case.values()
    spread = torch.linspace(-40, 40, m, device=device).exp2()
    a, b, rest = (torch.randn(*one, generator=generator, device=device) for one in ((k, m), (k, n), (m, n)))
    return a * spread, b * 1e-20, rest * 1e-20


def reference(a, b, rest):
    return FOLLOWED(a.T @ b + rest)
"""


@pytest.mark.parametrize(
    ("followed", "precision"),
    [("torch.relu", "ieee"), ("torch.relu", "tf32"), ("torch.nn.functional.normalize", "ieee")],
)
def test_matrices_of_float32_are_multiplied_as_float16(tmp_path, followed, precision):
    path = tmp_path / "parted_task.py"
    path.write_text(PARTED.replace("FOLLOWED", followed) + f"PRECISION = {precision!r}\n")
    one = load(path)
    source = template_of(one, "gluon")
    assert source is not None and "parted_kernel[" in source.text and template_of(one) is None
    assert ("3 * turns" in source.text) == (precision == "ieee")
    passes(one, source)


LAYERED = """
import torch

CASES = {"check": [{"b": 3, "m": 256, "n": 272, "k": 70}], "search": [{"b": 2, "m": 264, "n": 257, "k": 100}]}


def inputs(case, generator, device):
    b, m, n, k = case.values()
    spread = torch.linspace(-20, 20, m, device=device).exp2()[:, None]
    x, y, rest = (torch.randn(*one, generator=generator, device=device) for one in ((b, m, k), (b, k, n), (b, m, n)))
    return x * spread, y, rest


def reference(x, y, rest):
    return REFERENCE
"""


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_batches_and_shares_of_long_sums_are_layers_of_one_product(tmp_path, precision):
    path = tmp_path / "layered_task.py"
    followed = "torch.relu(torch.baddbmm(rest, x, y)) * rest"
    path.write_text(LAYERED.replace("REFERENCE", followed) + f"PRECISION = {precision!r}\n")
    one = load(path)
    source = template_of(one, "gluon")
    assert source is not None and "mul_kernel[" not in source.text.partition("else:")[0]
    text = source.text.replace("SHARE = 1024", "SHARE = 24").replace("ADDING = 512", "ADDING = 0")
    text = text.replace("    layers, later =", "    assert shares > 1\n    layers, later =")
    assert text.count("SHARE = 24") == text.count("ADDING = 0") == text.count("assert shares > 1") == 1
    passes(one, Source(text))


def test_products_of_a_batch_with_one_matrix_are_one_product(tmp_path):
    path = tmp_path / "layered_task.py"
    same = "torch.bmm(x, y[0].expand(x.shape[0], -1, -1)) + rest"
    path.write_text(LAYERED.replace("REFERENCE", f"torch.einsum('bml,ln->bmn', x, y[1]), {same}"))
    one = load(path)
    source = template_of(one, "gluon")
    assert source is not None and source.text.count(".as_strided((n0 * n1, n3), (n3, 1))") == 2
    passes(one, source)


PLANES = """
import torch
import torch.nn.functional as F

CASES = {"check": [{"n": 1, "c": 3, "f": 5}], "search": [{"n": 4, "c": 20, "f": 40}]}


def inputs(case, generator, device):
    n, c, f = case.values()
    x, w, bias = (torch.randn(*one, generator=generator, device=device) for one in ((n, c, 19, 22), (f, c, 3, 4), (f,)))
    spread = torch.linspace(-40, 40, n, device=device).exp2()[:, None, None, None]
    return x * spread, w * 1e-20, bias * 1e-20, F.conv2d(x, w, None, PLACES) * 1e-20


def reference(x, w, bias, rest):
    return FOLLOWED(F.conv2d(x, w, bias, PLACES) + rest)
"""


@pytest.mark.parametrize(
    ("places", "followed", "precision"),
    [
        ("(3, 2), (2, 1)", "F.mish", "ieee"),
        ("9", "F.relu", "refused"),
    ],
)
def test_convolutions_of_float32_are_multiplied_as_float16(tmp_path, places, followed, precision):
    path = tmp_path / "planes_task.py"
    text = PLANES.replace("PLACES", places).replace("FOLLOWED", followed)
    path.write_text(text + f"PRECISION = {precision.replace('refused', 'ieee')!r}\n")
    one = load(path)
    source = template_of(one, "gluon")
    if precision == "refused":
        assert source is None
        return
    assert source is not None and "planes_kernel[" in source.text and template_of(one) is None
    assert ("3 * turns" in source.text) == (precision == "ieee")
    passes(one, source)


SPACES = """
import torch
import torch.nn.functional as F

CASES = {"check": [{"n": 3, "c": 20, "f": 24}], "search": [{"n": 2, "c": 20, "f": 24}]}


def inputs(case, generator, device):
    n, c, f = case.values()
    return [torch.randn(*one, generator=generator, device=device) for one in ((n, c, PLACES), (FILTERS), (f,))]


def reference(x, w, bias):
    y = F.CONVOLUTION
    return y * torch.sigmoid(y)
"""


def spaces(folder, places, filters, convolution, channels=20, precision="tf32", count=24):
    """A task of a convolution, and its Gluon form, which computes what follows too."""
    path = folder / "spaces_task.py"
    text = SPACES.replace("PLACES", places).replace("FILTERS", filters).replace("CONVOLUTION", convolution)
    text = text.replace('"c": 20', f'"c": {channels}').replace('"f": 24', f'"f": {count}')
    path.write_text(text + f"PRECISION = {precision!r}\n")
    one = load(path)
    source = template_of(one, "gluon")
    assert source is not None and "    cut(x" in source.text
    assert not any(f"{kernel}_kernel[" in source.text for kernel in ("convolution", "sigmoid", "mul"))
    return one, source


def test_convolutions_of_float32_in_other_spaces(tmp_path):
    spaces(tmp_path, "420", "f, c, 3", "conv1d(x, w, bias, 3, 2, 4)")
    turned = "conv_transpose3d(x, w, bias, (2, 1, 2), 1, 0, 2, (1, 1, 2))"
    one, source = spaces(tmp_path, "3, 4, 5", "c, f // 2, 2, 2, 3", turned)
    passes(one, source)


DIRECT = [  # shapes of x behind the batch, of filters, and the convolution: in two dimensions; in one, turned
    ("16, 17, 22", "24, 16, 3, 2", "conv2d(x, w, bias, (1, 2), (2, 1), (2, 1))"),
    ("5, 90", "5, 24, 2", "conv_transpose1d(x, w, bias, 3)"),
]


def test_convolutions_of_few_products_copy_nothing(tmp_path):
    numbers = range(len(DIRECT))
    shapes = ", ".join(f"(n, {x}), ({w}), (24,)" for x, w, _ in DIRECT)
    names = ", ".join(f"x{i}, w{i}, bias{i}" for i in numbers)
    outputs = (
        call.replace("(x, w, bias", f"(x{i}, w{i}, bias{i}") for i, (_, _, call) in zip(numbers, DIRECT, strict=True)
    )
    path = tmp_path / "few_task.py"
    path.write_text(f"""
import torch
import torch.nn.functional as F
PRECISION = "tf32"
CASES = {{"check": [{{"n": 3}}], "search": [{{"n": 2}}]}}
def inputs(case, generator, device):
    n = case["n"]
    return [torch.randn(*one, generator=generator, device=device) for one in ({shapes})]
def reference({names}):
    return {", ".join(f"F.{one}" for one in outputs)}
""")
    one = load(path)
    source = template_of(one, "gluon")
    assert source is not None
    passes_directly(one, source)


def test_operands_of_few_products_are_rounded_to_tf32_as_cudnn_does(tmp_path):
    _, source = spaces(tmp_path, "8, 9", "c, f, 2, 3", "conv_transpose2d(x, w, bias, 2, (0, 1))", 8)
    generator = torch.Generator().manual_seed(5)
    x, w, bias = (torch.rand(*shape, generator=generator) for shape in ((3, 8, 8, 9), (8, 24, 2, 3), (24,)))
    x[0, 0, 0, :2] = torch.tensor([float("nan"), float("inf")])
    x.view(torch.int32)[1, 0, 0, 0] = 0x7FFFFFFF  # a NaN, and the largest number of bits
    text = source.text.replace("torch.cuda.get_device_properties(x.device).multi_processor_count", "132")
    (tmp_path / "executed").mkdir()
    ((found,),) = results_of(tmp_path / "executed", {"turned": text}, {"turned": [(x, w, bias)]})["turned"]
    near = ((one.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for one in (x, w))
    x_near, w_near = (torch.where(a.isfinite(), b, a).double() for a, b in zip((x, w), near, strict=True))
    expected = F.silu(F.conv_transpose2d(x_near, w_near, bias.double(), 2, (0, 1)))
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_what_follows_a_convolution_of_few_products_is_computed_with_it(tmp_path, precision):
    turned = "8, 9", "c, f, 2, 3", "conv_transpose2d(x, w, bias, 2, (0, 1))", 8
    whole = "3, 5, 12", "f, c, 3, 3, 3", "conv3d(x, w, bias, 1, 1)", 3
    passes_directly(*spaces(tmp_path, *(turned if precision == "tf32" else whole), precision))


def test_planes_are_read_as_they_lie_where_filters_have_one_tap(tmp_path):
    passes_directly(*spaces(tmp_path, "2, 6, 11", "f, c, 1, 1, 1", "conv3d(x, w, bias)", 40, count=150), "one_tap")


def passes_directly(one, source, function="direct"):
    """Where a function that copies nothing takes every convolution."""
    text = re.sub(rf"if ({function}\(.*\)):\n +return\n", r"assert \1\n    return\n", source.text)
    assert text.count(f"assert {function}(") == source.text.count(f"if {function}(") > 0
    passes(one, Source(text))


def test_only_products_of_16_bits_have_one_in_triton(tmp_path):
    assert template_of(task(tmp_path, "wide", *SERVED["product"], dtype="float()")) is None
    assert template_of(task(tmp_path, "small", *SERVED["product"], dtype="float()"), "gluon") is None
    assert template_of(task(tmp_path, "windows", *SERVED["convolution"], dtype="float()"), "gluon") is None
    assert template_of(task(tmp_path, "narrow", *SERVED["product"])) is not None
