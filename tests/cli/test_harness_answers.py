"""What is asked of KernelBench's harness, and what is made of its answers. Its own code: tests/export/test_harnesses."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from evo_kernel.app.suite.harnesses import (
    TIMED,
    TRIALS,
    _of,
    at_sizes,
    drawn,
    harness_of,
    hear,
    home_of,
    timed_within,
)  # fmt: skip
from evo_kernel.errors import TaskError
from evo_kernel.observe.suites import Stock
from tests.support.benchmark import IMAGES, LINEAR, checkout
from tests.support.fake_harness import add_harness


class Result(types.SimpleNamespace):
    """As its KernelExecResult."""

    def __init__(self, correct: bool = True, compiled: bool = True, **metadata: Any) -> None:
        super().__init__(compiled=compiled, correctness=correct, metadata=metadata, runtime=2.0, ref_runtime=3.0)


class Harness(types.ModuleType):
    """Notes what `eval_kernel_against_ref` and `measure_ref_program_time` are called with. Times are in ms."""

    def __init__(self, answer: Result, wrong_at: str = "") -> None:
        super().__init__("harness")
        self.asked: list[dict[str, Any]] = []
        self.tf32: Any = None
        self.timing = types.SimpleNamespace(measure_ref_program_time=self._measure)
        self._answer, self._wrong_at = answer, wrong_at

    def eval_kernel_against_ref(self, problem: str, solution: str, **more: Any) -> Result:
        self.asked.append({"problem": problem, "solution": solution, **more})
        return Result(False) if self._wrong_at and self._wrong_at in problem else self._answer

    def _measure(self, name: str, problem: str, **more: Any) -> dict[str, float]:
        assert "torch.device('cuda')" in problem and more["num_trials"] == 20
        self.tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return {"mean": 1.5}


def test_on_a_gpu_it_is_asked_by_its_own_settings_then_with_scaled_inputs_and_tf32() -> None:
    harness = Harness(Result(excessive_speedup=True, error_during_performance=ValueError("late")), wrong_at="* 0.01")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    heard = hear(harness, LINEAR, "the solution", "cuda", timed=20)
    assert (heard.verdict, heard.us, heard.eager_us, heard.tf32_us, heard.timed) == ("correct", 2000, 3000, 1500, 20)
    assert heard.scaled == {"x3": True, "x0.01": False, "x-1": True}
    assert heard.notes[:2] == (
        "its harness calls the speed-up excessive",
        "its harness could not time the kernel: late",
    )
    stock, *scaled = harness.asked
    assert (stock["num_correct_trials"], stock["num_perf_trials"], stock["timing_method"]) == (TRIALS, 20, "cuda_event")
    assert stock["measure_performance"] and not any(one["measure_performance"] for one in scaled)
    assert all(one["backend"] == "triton" and one["precision"] is torch.float32 for one in harness.asked)
    assert harness.tf32 == (True, True)
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


def test_of_a_wrong_kernel_nothing_else_is_asked() -> None:
    harness = Harness(Result(False, correctness_issue="Output mismatch", max_difference=["0.5", "0.4"]))
    heard = hear(harness, LINEAR, "the solution", "cuda")
    assert (heard.verdict, heard.reason) == ("wrong", "Output mismatch (off by up to 0.5, 0.4)")
    assert len(harness.asked) == 1 and heard.us is None


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (None, "no verdict", "a lock"),
        (Result(False, compiled=False, compilation_error="no Triton"), "wrong", "it does not load: no Triton"),
        (Result(False, runtime_error="expected Long"), "no verdict", "cannot run the problem's own model: expected"),
        (Result(False, runtime_error="too large", runtime_error_traceback="..."), "wrong", "when it runs: too large"),
    ],
)
def test_what_is_not_the_kernels_fault_is_no_verdict(answer: Any, verdict: str, reason: str) -> None:
    heard = _of(answer)
    assert isinstance(heard, Stock)
    assert heard.verdict == verdict and reason in heard.reason


def test_problems_are_scaled_and_made_small_as_text() -> None:
    small: dict[str, Any] = {}
    exec(at_sizes(LINEAR, "p.py", {"batch_size": 3, "features": 5}), small)
    assert small["get_inputs"]()[0].shape == (3, 5) and small["get_init_inputs"]() == [5, 2048, 64]
    exec(at_sizes(IMAGES, "p.py", {"size_224": 9}), small)
    assert small["get_inputs"]()[0].shape[2:] == (9, 9)
    with_labels = LINEAR.replace("features)]", "features), torch.ones(2, dtype=torch.int64), 7]")
    text = at_sizes(with_labels, "p.py", {"batch_size": 3, "features": 5})
    exec(drawn(text, -1.0, "cpu"), small)
    x, labels, number = small["get_inputs"]()
    assert x.max() <= 0 and labels.tolist() == [1, 1] and number == 7
    assert "with torch.device('cuda'):" in drawn(text, 1.0, "cuda") and drawn(text, 1.0, "cpu") == text


def test_slow_kernels_are_timed_less_often() -> None:
    assert [timed_within(us) for us in (None, 100.0, 1e5, 1e7)] == [TIMED, TIMED, 40, 10]


def test_a_harness_loads_without_clients_of_models_and_says_what_it_lacks(tmp_path, monkeypatch) -> None:
    for name in ("openai", "litellm", "dotenv", "requests", "tqdm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    root = checkout(tmp_path)
    problem = root / "KernelBench/level1/1_Softmax.py"
    with pytest.raises(TaskError, match="not the harness"):
        home_of(problem)
    package = add_harness(root)
    assert home_of(problem) == root
    (package / "eval.py").write_text("import nothing_of_this_name\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(TaskError, match=r"does not import.*Install nothing_of_this_name"):
        harness_of(root)
    assert not {"openai", "litellm", "tqdm"} & set(sys.modules)  # they stood in for the time of the import only
    for name in ("kernelbench", "kernelbench.timing"):
        sys.modules.pop(name, None)
