"""docs/guides/tasks.md: its example is a working task, and it names all that a task file may say."""

import ast
import re
from pathlib import Path

from evo_kernel.tasks import loading, probe, task
from evo_kernel.types import CaseKind

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guides" / "tasks.md").read_text()


def test_the_example_is_a_clean_task(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "swiglu.py").write_text(example)
    swiglu = loading.load(tmp_path / "swiglu.py")
    assert len(swiglu.cases_of(CaseKind.CHECK)) == 2
    assert probe.probe(swiglu) == []


def strings_after(source, call):
    """First string arguments of every call of a function or method with this name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == call:
            yield from (a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str))


def test_every_name_of_the_contract_is_documented():
    source = Path(loading.__file__).read_text()
    names = {
        name
        for call in ("getattr", "_choice", "_function", "_optional_function")
        for name in strings_after(source, call)
    }
    contract = {name for name in names if re.fullmatch(r"[A-Z_]+|inputs|reference|flops|bytes", name)}
    assert contract >= {
        "CASES",
        "BASELINES",
        "ALLOW",
        "TOLERANCE",
        "PRECISION",
        "HOST_KNOWN",
        "SEED",
        "flops",
        "inputs",
    }
    for name in contract:
        assert f"| `{name}" in TEXT, name


def test_every_tolerance_and_finding_is_documented():
    findings = {
        name
        for call in ("ProbeFinding", "note", "tried")
        for name in strings_after(Path(probe.__file__).read_text(), call)
    }
    names = {name for name in findings if re.fullmatch(r"[a-z0-9-]+", name)}
    assert len(names) >= 16
    for name in names | set(vars(task.Tolerance())) | set(task.TOLERANCES):
        assert f"`{name}`" in TEXT or f'`"{name}"`' in TEXT or name == "precision", name
