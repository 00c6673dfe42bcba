"""Fusion: one kernel in the end whatever comes first, and the fused kernels are fit to be read."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.types import Purpose, Source, Strategy, TaskCard
from operators.micro.host_code import BYTES_PER_US, LAUNCH_US, fusion_gains
from operators.micro.module import KernelModule
from operators.micro.rewrites import REWRITES
from operators.micro.rewrites.base import tidied
from operators.micro.rewrites.fuse import FuseConsumer
from tests.operators.support_rewrites import errors_of
from tests.support.scripted import scored

FUSIONS = ("fuse-producer", "fuse-consumer")
TASK = """
import torch

CASES = {{"check": [{{"m": 3, "n": 100}}], "search": [{{"m": 8192, "n": 2048}}]}}


def inputs(case, generator, device):
    m, n = case["m"], case["n"]
    draw = lambda *sizes: torch.randn(*sizes, generator=generator, device=device)
    return {inputs}


def reference({names}):
    return {formula}
"""
FORMULAS = {
    "masked": (
        "x, b, mask",
        "draw(m, n), draw(n), draw(m, n) > 1.0",
        "torch.softmax(((x + b) * 0.125).masked_fill(mask, float('-inf')), -1)",
    ),
    "after": ("x, w", "draw(m, n), draw(n)", "torch.relu(torch.softmax(x, -1) * w) + x"),
    "twice": ("x, w", "draw(m, n), draw(n)", "torch.log_softmax(torch.softmax(x, -1) * w, -1)"),
    "beside": ("x, w", "draw(m, n), draw(n)", "((x * w).mean(-1), (x * w).amax(-1))"),
}
NOTHING = TaskCard("sample", "", "mixed", "ieee", False, ())


def lowered(name: str, folder: Path) -> tuple[str, TaskCard]:
    """The first kernel of a task without a seed."""
    names, inputs, formula = FORMULAS[name]
    path = folder / f"{name}.py"
    path.write_text(TASK.format(names=names, inputs=inputs, formula=formula))
    task = load(str(path))
    return first_kernel(task).text, task.card()


def test_what_a_fusion_saves_is_its_buffers_traffic_and_a_launch(tmp_path: Path) -> None:
    text, task = lowered("after", tmp_path)
    offered = [s for name in FUSIONS for s in REWRITES[name].offers(KernelModule.parse(text), task)]
    assert offered
    times = scored(Source(text), Purpose.SCORE)
    parent = replace(times, measurements=(replace(times.measurements[0], case=task.cases[-1].name, median_us=200.0),))
    saved_us = 2 * 4 * 8192 * 2048 / BYTES_PER_US + LAUNCH_US  # every buffer is as large as x, in float32
    gains = fusion_gains(Source(text), task, parent, offered)
    assert set(gains) == {strategy.key for strategy in offered}
    assert list(gains.values()) == pytest.approx([math.log(200.0 / (200.0 - saved_us))] * len(gains))
    assert fusion_gains(Source(text), task, None, offered) == {}, "nobody knows the parent's time"
    assert fusion_gains(Source("no kernel"), task, parent, offered) == {}


def ends_of(text: str, task: TaskCard) -> dict[str, tuple[str, ...]]:
    """What every order of fusions ends in: text → the fusions that led there."""
    ends: dict[str, tuple[str, ...]] = {}
    todo, seen = [(text, ())], {text}
    while todo:
        text, path = todo.pop()
        module = KernelModule.parse(text)
        found = [strategy for name in FUSIONS for strategy in REWRITES[name].offers(module, task)]
        made = [(REWRITES[s.name].apply(module, s), (*path, s.key)) for s in found]
        todo += [(changed, longer) for changed, longer in made if changed not in seen]
        seen |= {changed for changed, _ in made}
        if not found:
            ends[text] = path
    return ends


@pytest.fixture(scope="module")
def ends_by_name(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[str, ...]]]:
    folder = tmp_path_factory.mktemp("lowered")
    return {name: ends_of(*lowered(name, folder)) for name in FORMULAS}


@pytest.mark.parametrize("name", FORMULAS)
def test_every_order_of_fusions_ends_in_one_kernel_that_computes_the_same(name: str, ends_by_name) -> None:
    ends = ends_by_name[name]
    several = {" > ".join(path) for text, path in ends.items() if len(KernelModule.parse(text).launches) > 1}
    assert len(ends) > 3 * (name in ("masked", "after")) and not several
    answers = errors_of([(text, name) for text in ends])
    wrong = [
        (path, answer) for path, answer in zip(ends.values(), answers, strict=True) if answer[1] or answer[0] > 2e-6
    ]
    assert not wrong


def test_a_fused_row_kernel_does_not_divide_for_its_row(ends_by_name) -> None:
    for text in ends_by_name["masked"]:
        assert " // " not in text and " % " not in text


def test_fusion_refuses_a_row_taken_apart_by_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`i // s * t + i % s` is i only where s is t."""
    text, task = lowered("after", tmp_path)
    step = "fuse-producer", "mul_rows_kernel -> relu_kernel"

    def steps() -> list[Strategy]:
        return [s for s in REWRITES[step[0]].offers(KernelModule.parse(text), task) if step[1] in s.region]

    assert not steps(), "the row kernel takes the flat one, which then needs no division"
    with monkeypatch.context() as patched:
        patched.setattr(FuseConsumer, "fused", lambda *_: None)
        fused = REWRITES[step[0]].apply(KernelModule.parse(text), steps()[0])
    assert fused.count("softmax, softmax.stride(0), w") == 1
    other = fused.replace("softmax, softmax.stride(0), w", "softmax, n1 + 1, w")
    for source, offered in ((fused, True), (other, False)):
        found = REWRITES["fuse-consumer"].offers(KernelModule.parse(source), task)
        assert any("softmax_kernel -> mul_rows_relu_kernel" in s.region for s in found) == offered


MIXED = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x * 2.0, mask=offsets < n)


def run(a):
    parts = torch.linalg.svd(a)
    values = parts[1]
    out = torch.empty_like(values)
    scale_kernel[(triton.cdiv(values.numel(), 128),)](values, out, values.numel(), BLOCK=128)
    return out
"""


def test_what_nobody_reads_goes_and_long_heads_are_broken() -> None:
    parameters = [f"parameter_number_{i}" for i in range(8)]
    kernel = f"""
@triton.jit
def long_kernel(x_ptr, y_ptr, {", ".join(parameters)}, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    last = column
    for start in range(0, {parameters[0]}, BLOCK):
        index = start + column
        total += tl.load(x_ptr + index, mask=index < {parameters[0]}, other=0.0)
        total = total * 1.0
        last = index
    tl.store(y_ptr + column, total, mask=column < {parameters[0]})
    column_2 = column
    index_2 = column_2
"""
    host = f"""
def run(x):
    y = torch.empty_like(x)
    long_kernel[(1,)](x, y, {", ".join(f"x.stride({i})" for i in range(8))}, BLOCK=128, num_warps=4)
    return y
"""
    before = "import torch\nimport triton\nimport triton.language as tl\n"
    text = tidied(before + kernel + host, KernelModule.parse("def run(x):\n    return x\n"))
    assert max(map(len, text.splitlines())) <= 120
    assert "column_2" not in text and "index_2" not in text and "last" not in text
    assert text.count("total") == 5 and ast.dump(ast.parse(tidied(text, KernelModule.parse("def run(x): ..."))))
    assert [a.arg for a in KernelModule.parse(text).kernels["long_kernel"].node.args.args][2:-1] == parameters


def test_the_users_own_kernels_are_left_as_they_are() -> None:
    text = MIXED.replace("    tl.store", "    unread = offsets\n    tl.store")
    module = KernelModule.parse(text)
    assert tidied(module.text, module) == module.text


def test_one_pass_after_fusion_leaves_no_dead_names(tmp_path: Path, ends_by_name) -> None:
    _, task = lowered("masked", tmp_path)
    module = KernelModule.parse(next(iter(ends_by_name["masked"])))
    strategy = REWRITES["one-pass-row"].offers(module, task)[0]
    kernels = KernelModule.parse(REWRITES["one-pass-row"].apply(module, strategy)).kernels
    last = next(k for k in kernels.values() if k.name.endswith("one_pass_kernel")).body[-1]
    assert isinstance(last, ast.Expr) and "tl.store" in ast.unparse(last)
