"""Every kind of node, launched on a real GPU through the judge: recorded, compiled, checked, timed.

Each test stands alone and prints, when it fails, what was recorded and compiled: one run tells everything.
"""

from __future__ import annotations

import sys
import traceback

import pytest
import torch

from evo_kernel.fitness.compile import nvrtc
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.record.recorder import RecordFault
from evo_kernel.types import CaseKind, Purpose, Source, Status
from tests.support.launch_kinds import FAILING_ASSERT, KINDS

QUICK = JudgeSettings(tune_plans=0, deadline_s=60.0)


@pytest.mark.parametrize("name", KINDS)
def test_kind_passes_and_is_timed(name, tmp_path):
    kind = KINDS[name]
    if "CUDA C++" in name:
        _need_nvrtc()
    with open_judge(kind.load(tmp_path), device="cuda", settings=QUICK) as judge:
        evaluation = judge.evaluate(kind.text, Purpose.SCORE)
        if evaluation.status is not Status.PASSED:
            _tell(judge, kind.text)
        assert evaluation.status is Status.PASSED, (name, evaluation.status, evaluation.reason)
        assert evaluation.score is not None and evaluation.score > 0
        for m in evaluation.measurements:
            print(f"{name}: {m.case}: {m.median_us:.2f} us ({m.low_us:.2f}..{m.high_us:.2f}, n={m.n})", m.baselines_us)


def test_an_assertion_that_fails_costs_only_the_culprit(tmp_path):
    kind = KINDS["assertion that holds"]
    with open_judge(kind.load(tmp_path), device="cuda", settings=QUICK) as judge:
        evaluation = judge.evaluate(Source(FAILING_ASSERT), Purpose.SCORE)
        print("failing assertion:", evaluation.status, evaluation.reason)
        assert evaluation.status is Status.RUNTIME_ERROR, (evaluation.status, evaluation.reason)
        assert "assert" in evaluation.reason.lower(), evaluation.reason
        after = judge.evaluate(kind.text, Purpose.SCORE)
        assert after.status is Status.PASSED, (after.status, after.reason)


def test_a_cooperative_grid_that_does_not_fit_has_a_sentence(tmp_path):
    kind = KINDS["cooperative launch"]
    task = kind.load(tmp_path)
    source = Source(kind.source.replace("triton.cdiv(x.numel(), 1024),", "100000,"))
    with open_judge(task, device="cuda", settings=QUICK) as judge:
        evaluation = judge.evaluate(source, Purpose.SCORE)
    print("too large a cooperative grid:", evaluation.status, evaluation.reason)
    assert evaluation.status is Status.REJECTED, (evaluation.status, evaluation.reason)
    assert "fit on this GPU at once" in evaluation.reason


def test_cuda_sources_run_as_they_stand():
    """Outside the judge: the helper compiles and launches by itself."""
    _need_nvrtc()
    scope: dict[str, object] = {}
    exec(compile(KINDS["CUDA C++ softmax"].source, "seed_cuda.py", "exec"), scope)  # our own file
    x = torch.randn(37, 1031, device="cuda")
    y = scope["run"](x)  # type: ignore[operator]
    error = float((y - torch.softmax(x, -1)).abs().max())
    print("direct launch: largest error", error)
    assert error < 1e-6


def _need_nvrtc() -> None:
    try:
        print("NVRTC:", nvrtc.load().folders)
    except nvrtc.CudaTextError as error:
        pytest.skip(str(error))


def _tell(judge, source: Source) -> None:
    """Everything that was recorded and compiled, the machine code apart."""
    try:
        for case, plan in judge.plans(source, (), (CaseKind.CHECK,)).items():
            if isinstance(plan, RecordFault):
                print("case", case, plan)
                continue
            for node in plan.plan.nodes:
                print("node", node)
            for kernel, binary in zip(plan.plan.kernels, plan.binaries, strict=True):
                print("kernel", kernel.model_dump(exclude={"text"}))
                print("binary", binary.model_dump(exclude={"cubin", "instructions"}))
    # Whatever goes wrong while telling must not hide what is told about.
    except Exception:  # noqa: BLE001
        traceback.print_exc(file=sys.stdout)
