"""Probes: planted degenerate tasks are named, honest ones are left alone; what task files state is checked."""

import pytest

from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.probe import examine, probe

HEAD = """
import torch
CASES = {"check": [{"n": 7}, {"n": 33}], "search": [{"n": 512}]}
def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(case["n"], case["n"], **draw), torch.randn(case["n"], case["n"], **draw)
"""


def findings(tmp_path, text):
    path = tmp_path / "planted.py"
    path.write_text(text)
    return probe(load(path))


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_tasks_are_clean(name):
    assert probe(load(name)) == []


@pytest.mark.parametrize(
    "reference",
    ["x + y", "x @ y", "x - y", "x.half() * y.half()", "(x > y)", "(x.argmax(1), y.sum(0))", "x.sum() + y.sum()"],
)
def test_honest_tasks_are_clean(tmp_path, reference):
    assert findings(tmp_path, HEAD + f"def reference(x, y): return {reference}\n") == []


@pytest.mark.parametrize(
    ("reference", "name", "fatal", "words"),
    [
        ("torch.relu(-x.abs()) + y * 0", "zeros", True, "an output of zeros passes on every check case"),
        ("torch.softmax(x * 1e-9 + y * 0, -1)", "constant", True, "as good as constant"),
        ("torch.full_like(x, 3)", "constant", True, "as good as constant"),
        ("x.clone()", "passed-through", False, "x passed through as the output"),
        ("x.exp() + 1e-9 * y", "ignored-input", False, "hardly depends on y"),
        ("x + y + 1e-9 * x", "swapped", False, "x and y swapped passes"),
        ("x / 0 + y", "not-finite", False, "inf or NaN"),
        ("x.add_(y)", "reference-mutates", True, "changes its inputs"),
        ("x + torch.rand_like(y)", "reference-varies", True, "two results"),
        ("x[:0] + y[:0]", "empty-output", True, "no elements"),
        ("torch.complex(x, y)", "complex-output", True, "view_as_real"),
        ("x @ torch.ones(y.shape) + y", "no-float64", False, "derive dtypes from the inputs"),
    ],
)
def test_planted_degenerate_tasks_are_named(tmp_path, reference, name, fatal, words):
    found = findings(tmp_path, HEAD + f"def reference(x, y): return {reference}\n")
    assert name in [finding.name for finding in found]
    finding = next(finding for finding in found if finding.name == name)
    assert finding.fatal is fatal and words in finding.sentence


def test_inputs_that_ignore_the_generator_are_named(tmp_path):
    text = HEAD.replace('draw = {"generator": generator, "device": device}', "draw = {}")
    (finding,) = findings(tmp_path, text + "def reference(x, y): return x + y\n")
    assert finding.name == "inputs-vary" and finding.fatal


def test_inputs_that_cannot_be_swapped_are_left_alone(tmp_path):
    text = """
import torch
CASES = {"check": [{"n": 33}], "search": [{"n": 512}]}
def inputs(case, generator, device):
    places = [torch.randint(0, size, (case["n"],), generator=generator, device=device) for size in (2, 50)]
    return torch.randn(2, 4, generator=generator, device=device), torch.randn(50, 4, generator=generator), *places
def reference(x, y, i, j): return x[i] + y[j]
"""
    assert findings(tmp_path, text) == []


def test_a_case_too_small_to_tell_does_not_condemn_a_task(tmp_path):
    """softmax over one column is always 1, over seven it is not."""
    text = HEAD.replace('{"n": 7}', '{"n": 1}') + "def reference(x, y): return torch.softmax(x + y, -1)\n"
    assert findings(tmp_path, text) == []


def test_an_input_that_is_always_the_same_is_not_called_ignored(tmp_path):
    text = """
import torch
CASES = {"check": [{"n": 7}], "search": [{"n": 512}]}
def inputs(case, generator, device):
    x = torch.randn(case["n"], 8, generator=generator, device=device)
    return x, torch.tensor([0, case["n"]], device=device), 2
def reference(x, offsets, factor): return x[offsets[0] : offsets[1]] * factor
"""
    assert findings(tmp_path, text) == []


@pytest.mark.parametrize("places", ['torch.arange(case["n"])', 'torch.arange(case["n"]).remainder(2).bool()'])
def test_integers_that_are_always_the_same_are_named(tmp_path, places):
    text = f"""
import torch
CASES = {{"check": [{{"n": 7}}, {{"n": 12}}], "search": [{{"n": 512}}]}}
def inputs(case, generator, device):
    return torch.randn(case["n"], generator=generator, device=device), {places}.to(device)
def reference(x, places): return x * places
"""
    (finding,) = findings(tmp_path, text)
    assert finding.name == "fixed-input" and not finding.fatal and "places is the same" in finding.sentence
    assert findings(tmp_path, text + "HOST_KNOWN = {1}\n") == []


def test_a_host_known_input_that_is_not_there_is_named(tmp_path):
    text = HEAD + "HOST_KNOWN = {2}\ndef reference(x, y): return x + y\n"
    (finding,) = findings(tmp_path, text)
    assert finding.fatal and "HOST_KNOWN names input 2, but inputs returns 2" in finding.sentence


CLAIMS = """
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
    path.write_text(CLAIMS + line + "\n")
    found = examine(load(path))
    assert [finding.name for finding in found] == ([name] if name else [])
    assert all(words in finding.sentence and str(path) in finding.sentence and not finding.fatal for finding in found)
