"""What task files state about themselves: the built-in ones are right, and mistakes are found."""

import pytest

from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.probe import examine

TASK = """
import torch
CASES = {"check": [{"m": 7, "n": 33, "k": 65}], "search": [{"m": 64, "n": 64, "k": 64}]}
def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(case["m"], case["k"], **draw), torch.randn(case["k"], case["n"], **draw)
def reference(x, y): return x @ y
def flops(case): return 2.0 * case["m"] * case["n"] * case["k"]
def bytes(case): return 4.0 * (case["m"] * case["k"] + case["k"] * case["n"] + case["m"] * case["n"])
BASELINES = {"half": lambda x, y: (x.bfloat16() @ y.bfloat16()).float()}
"""


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_tasks_state_what_is_so(name):
    # PyTorch 2.11 has no product by scales of rows on a CPU; on a GPU it has.
    assert [found for found in examine(load(name)) if "per-tensor scaling for CPU" not in found.sentence] == []


@pytest.mark.parametrize(
    ("line", "name", "words"),
    [
        ("", None, ""),
        ('BASELINES = {"other": lambda x, y: x @ y * 1.1}', "baseline-differs", "output 0 is 0.1 of its norm away"),
        ('BASELINES = {"other": lambda x, y: (x @ y).half()}', "baseline-differs", "torch.float16 (7, 33), not"),
        ('BASELINES = {"other": lambda x, y: (x @ y, x)}', "baseline-differs", "2 outputs, not 1"),
        ('BASELINES = {"other": lambda x, y: x @ y * float("nan")}', "baseline-differs", "away"),
        ('BASELINES = {"other": lambda x, y: x.cuda() @ y}', "baseline-fails", "'other' failed on the CPU"),
        ('def flops(case): return 2.0 * case["m"] * case["n"]', "flops", "flops says 462, but"),
        (
            'def bytes(case): return 4.0 * case["m"] * case["n"] * case["k"]',
            "bytes",
            "more than all inputs and outputs",
        ),
    ],
)
def test_mistakes_are_found(tmp_path, line, name, words):
    path = tmp_path / "mine.py"
    path.write_text(TASK + line + "\n")
    found = examine(load(path))
    assert [finding.name for finding in found] == ([name] if name else [])
    assert all(words in finding.sentence and str(path) in finding.sentence and not finding.fatal for finding in found)
