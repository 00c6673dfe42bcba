"""torch.compile's kernels, cleaned, on a real GPU: right, and timed against eager PyTorch and torch.compile itself.

`python -m pytest tests/gpu/test_compiled.py -s -rA` prints a line a problem; EVO_KERNEL_COMPILED_S (default 110) is how
many seconds may have passed before another problem starts. Cleaned modules are printed where something is wrong.
"""

from __future__ import annotations

import os
import time
import traceback

import pytest

from evo_kernel.errors import LoweringError
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.compiled.module import compiled_function
from evo_kernel.tasks.first import first_of
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import TensorSpec
from evo_kernel.types import Purpose, Status

BEGAN = time.monotonic()
LIMIT_S = float(os.environ.get("EVO_KERNEL_COMPILED_S", "110"))

TASK = '''"""{name}"""
import torch
import torch.nn.functional as F

CASES = {{"check": [{check}], "search": [{search}], "confirm": [{search}]}}
{more}


def inputs(case, generator, device):
    def normal(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    def below(high, *shape):
        return torch.randint(0, high, shape, generator=generator, device=device)

    return {inputs}


def reference({arguments}):
    return {result}
'''
SMALL, LARGE = '{"m": 6, "n": 17}, {"m": 33, "n": 64}', '{"m": 4096, "n": 4096}'
IMAGE = '{"m": 19, "n": 12}', '{"m": 112, "n": 112}'
PROBLEMS = {
    # name: inputs, arguments, result, (check, search), more
    "softmax": ("(normal(case['m'], case['n']),)", "x", "torch.softmax(x * 2, -1)", (SMALL, LARGE), ""),
    "matmul_gelu": (
        "(normal(case['m'], case['n'], dtype=torch.bfloat16), normal(case['n'], case['m'], dtype=torch.bfloat16))",
        "x, y", "F.gelu(x @ y)", (SMALL, LARGE), "",
    ),
    "layer_norm": (
        "(normal(case['m'], case['n']), normal(case['n']), normal(case['n']))",
        "x, w, b", "F.layer_norm(x, (x.shape[-1],), w, b) + x", (SMALL, LARGE), "",
    ),
    "convolution": (
        "(normal(8, 32, case['m'], case['n']), normal(64, 32, 3, 3), normal(64))",
        "x, w, b", "torch.relu(F.conv2d(x, w, b, padding=1))", IMAGE, "",
    ),
    "cross_entropy": (
        "(normal(case['m'], case['n']), below(case['n'], case['m']))",
        "x, t", "F.cross_entropy(x, t)", (SMALL, LARGE), "",
    ),
    "scan": ("(normal(case['m'], case['n']),)", "x", "x.cumsum(-1)", (SMALL, LARGE), ""),
    "mixed": (
        "(normal(case['m'], case['n']), normal(case['n'], case['m']), normal(case['m']))",
        "x, y, b", "torch.relu(torch.addmm(b, x, y)) * 2", (SMALL, LARGE), 'ALLOW = "mixed"',
    ),
    "attention": (
        "tuple(normal(2, 4, case['m'], 64, dtype=torch.bfloat16) for _ in range(3))",
        "q, k, v", "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ('{"m": 33}', '{"m": 1024}'), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_cleaned_kernels_are_right_and_timed(name, tmp_path):
    if time.monotonic() - BEGAN > LIMIT_S:
        pytest.skip(f"{LIMIT_S:g} s have passed: EVO_KERNEL_COMPILED_S")
    inputs, arguments, result, (check, search), more = PROBLEMS[name]
    path = tmp_path / f"{name}.py"
    path.write_text(TASK.format(
        name=name, check=check, search=search, more=more, inputs=inputs, arguments=arguments, result=result
    ))  # fmt: skip
    task = load(path)
    began = time.monotonic()
    try:
        first = first_of(task, "compiled")
    except LoweringError as error:
        _traced(task)
        pytest.fail(f"{name}: no kernels: {error}")
    made_s = time.monotonic() - began
    with open_judge(task, device="cuda", settings=JudgeSettings(tune_plans=0, deadline_s=25.0)) as judge:
        evaluation = judge.evaluate(first.source, Purpose.SCORE)
    took_s = time.monotonic() - began - made_s
    print(f"\n{name}: {evaluation.status}, written in {made_s:.1f} s, judged in {took_s:.1f} s; {evaluation.reason}")
    for m in evaluation.measurements:
        held = ", ".join(f"{title} {us:.1f}" for title, us in m.baselines_us.items())
        print(f"  {m.case}: {m.median_us:.1f} µs; {held}")
    if evaluation.status is not Status.PASSED:
        print(first.source.text)
    assert first.origin == "compiled"
    assert evaluation.status is Status.PASSED, evaluation.reason


def _traced(task):
    """Print where it goes wrong: the child tells a sentence, in this process there is a traceback."""
    specs = (task.input_specs(case) for case in task.cases)
    cases = [[s.empty("meta") if isinstance(s, TensorSpec) else s for s in inputs] for inputs in specs]
    try:
        compiled_function(task.reference_function, cases, allow_aten=True, templates=task.allow != "mixed")
    except LoweringError:
        traceback.print_exc()
