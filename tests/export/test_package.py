"""A package without its kernels: what it holds, what it says, and that the reference answers where no kernel may."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evo_kernel.app.packaging import has_hidden_cases, task_files
from evo_kernel.errors import UserError
from evo_kernel.export.package import (
    JudgedCase,
    Package,
    Tensor,
    checked_name,
    identifier,
    judged,
    operator_name,
    readme,
    write_package,
)
from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.traits import computes_the_same
from evo_kernel.types import CaseKind, Source

NAMES = ["x", "scale"]
INPUTS = (Tensor("float32", (4, 8), (8, 1)), 2.0)
SPECS = ({"dtype": "float32", "shape": [4, 8], "strides": [8, 1]}, {"value": 2.0})
CASES = judged([JudgedCase("small", CaseKind.CHECK, {}, INPUTS, SPECS, (INPUTS[0],), "candidate_7")])
ENVIRONMENT = {"kind": "measured", "label": "measured (a GPU)", "torch": "2.13.0"}
TASK = "import torch\nCASES = [{}]\ndef inputs(case, generator, device): ...\n"
TASK += "def reference(x, scale):\n    return x * scale\n"
PACKAGE = Package(
    name="doubling_kernel",
    operator="doubling",
    description='Twice "it"',
    manifest={
        "namespace": "doubling_kernel",
        "op": "doubling",
        "task": "doubling",
        "names": NAMES,
        "schema": "(Tensor x, float scale) -> Tensor",
        "outputs": 1,
        "layouts": [[0, 1]],
        "output_shapes": None,
        "differentiable": [0],
        "backward": None,
        "backward_schema": "(Tensor x, float scale, Tensor grad_0) -> Tensor",
        "not_executed": ["large"],
        "not_judged": ["hidden"],
        "judged": [{"task": "doubling", "target": 90, "environment": "measured (a GPU)", "names": NAMES, "cases": CASES}],
    },
    kernels={"candidate_7": {"target": 90, "precision": "ieee", "codes": [], "cases": []}},
    sources={"candidate_7": Source("raise RuntimeError('no source may be imported here')\n")},
    tasks={"doubling/task.py": TASK},
    helpers={},
    plans={"candidate_7.small": "{}"},
    provenance=[
        {
            "kernel": "candidate_7", "task": "doubling", "task_folder": "doubling", "candidate": 7, "confirmed": False, "hidden": True,
            "population": "d.db", "confirmation": None, "hidden_cases": [],
            "survival": "96% of the claimed gain survived", "plans_are_the_judged_ones": True,
            "evaluation": {"score": 2.0, "against": "eager", "environment": ENVIRONMENT, "cases": [
                {"case": "small", "us": 12.5, "baselines_us": {"eager": 25.0}, "speedup": 2.0, "floor_us": 5.0}]},
            "path": [{"strategy": "seed"}, {"strategy": "vectorise"}],
            "plans": [{"case": "small", "kind": "check", "hash": "0", "file": "candidate_7.small.plan"}],
        }
    ],
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("export") / "new" / "package"
    write_package(PACKAGE, made)
    return made


@pytest.fixture(scope="module")
def imported(folder: Path):
    sys.path.insert(0, str(folder))
    yield importlib.import_module("doubling_kernel")
    sys.path.remove(str(folder))


@pytest.fixture(autouse=True)
def nothing_launches_on_a_cpu(monkeypatch) -> None:
    """As in a process that has not loaded evo-kernel's executor; other tests do."""
    monkeypatch.delitem(sys.modules, "evo_kernel.fitness.ir.programs", raising=False)


def test_every_file_is_in_the_manifest_with_its_hash(folder: Path) -> None:
    home = folder / "doubling_kernel"
    wanted = json.loads((home / "manifest.json").read_text())["files"]
    written = {str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert written == {*wanted, "manifest.json"}
    for name, digest in wanted.items():
        assert hashlib.sha256((home / name).read_bytes()).hexdigest() == digest
    compile((folder / "tests" / "test_package.py").read_text(), "test_package.py", "exec")


def test_the_readme_of_a_kernel_without_a_score_has_dashes() -> None:
    (found,) = PACKAGE.provenance
    (case,) = found["evaluation"]["cases"]
    unknown = found["evaluation"] | {
        "score": None,
        "cases": [case | {"baselines_us": {}, "speedup": None, "floor_us": None}],
    }
    text = readme(PACKAGE.name, PACKAGE.operator, PACKAGE.manifest, [found | {"evaluation": unknown}])
    assert "No score yet, measured (a GPU)" in text and "| small | 12.5 |  | - | - |" in text


def test_the_readme_of_a_confirmed_kernel_lists_hidden_sizes() -> None:
    (found,) = PACKAGE.provenance
    (case,) = found["evaluation"]["cases"]
    plans = [*found["plans"], {"case": "odd", "kind": "confirm", "hash": "1", "file": "candidate_7.odd.plan"}]
    confirmed = {"confirmed": True, "hidden_cases": [case | {"case": "odd", "us": 7.5}], "plans": plans}
    (group,) = PACKAGE.manifest["judged"]
    groups = [group | {"cases": [*group["cases"], group["cases"][0] | {"name": "odd", "kind": "confirm"}]}]
    manifest = {**PACKAGE.manifest, "judged": groups, "not_judged": []}
    text = readme(PACKAGE.name, PACKAGE.operator, manifest, [found | confirmed])
    assert (
        "| odd, hidden | 7.5 | eager 25.0 | 5.0 | 2.00x |" in text and "| odd, hidden | float32 4 × 8 | 2.0 |" in text
    )
    assert "plans/candidate_7.odd.plan" in text and "NOT CONFIRMED" not in text and "Hidden sizes of" not in text


def test_the_readme_of_a_refuted_kernel_says_why() -> None:
    (found,) = PACKAGE.provenance
    refuted = found | {"confirmation": {"reason": "it is slower"}}
    text = readme(PACKAGE.name, PACKAGE.operator, PACKAGE.manifest, [refuted])
    assert "** Its confirmation refuted it: it is slower.\n" in text and "evo-kernel confirm" not in text


def test_the_readme_says_what_was_judged_and_how_to_check_it(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    assert "measured (a GPU); NOT confirmed on hidden cases.\n96% of the claimed gain survived." in readme
    assert (
        "**NOT CONFIRMED, so no hidden size is served: the reference answers there.** `evo-kernel confirm d.db 7`"
        in readme
    )
    assert "\nHidden sizes of what is not confirmed, where nothing was judged, so not among these: hidden.\n" in readme
    assert "Score 2.000x eager, measured (a GPU)" in readme
    assert "| small | 12.5 | eager 25.0 | 5.0 | 2.00x |" in readme and "Path: seed → vectorise" in readme
    assert "| case | x | scale | kernel |" in readme
    assert "| small | float32 4 × 8 | 2.0 | candidate_7 |" in readme and "not among these: large." in readme
    task = "--task doubling_kernel/tasks/doubling"
    assert f"evo-kernel verify doubling_kernel/sources/candidate_7.txt {task} --confirm" in readme
    assert f"evo-kernel replay doubling_kernel/plans/candidate_7.small.plan {task}" in readme


def test_outside_what_was_judged_the_reference_answers_and_one_warning_says_why(imported) -> None:
    x = torch.randn(4, 8)
    assert imported.chosen(x, 2.0) == "reference: inputs lie on the CPU"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(imported.doubling(x, 2.0), x * 2.0)
        assert torch.equal(imported.doubling(x, 3.0), x * 3.0)
    assert ["inputs lie on the CPU" in str(one.message) for one in caught] == [True]


def test_what_was_not_judged_is_named_and_raises_where_that_was_asked_for(imported, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, imported._op._launch.ON_A_CPU, object())  # as if a CPU could launch
    x = torch.randn(4, 8)
    assert imported.chosen(x, 2.0) == imported.chosen(torch.randn(8, 16)[::2, :8].contiguous(), 2.0) == "candidate_7"
    for inputs, says in {
        (x[:3], 2.0): "x is float32 (3, 8); judged with float32 (4, 8)",
        (x.double(), 2.0): "x is float64 (4, 8); judged with float32 (4, 8)",
        (torch.randn(8, 4).t(), 2.0): "x is float32 (4, 8) with strides (1, 4); judged with float32 (4, 8)",
        (x, 3.0): "scale is 3.0; judged with 2.0",
        (x, 2): "scale is 2; judged with 2.0",
    }.items():
        assert imported.chosen(*inputs) == f"reference: {says}"
    imported.strict()
    with pytest.raises(imported._op._launch.CannotLaunch, match=r"scale is 3\.0; judged with 2\.0"):
        imported.doubling(x, 3.0)
    imported.strict(False)
    assert torch.equal(imported.doubling(x, 3.0), x * 3.0)


def test_gradients_and_compilers(imported) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(lambda x: imported.doubling(x, 2.0).sum(), fullgraph=True, backend="aot_eager")
    compiled(x).backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2.0))


def test_a_changed_file_is_told(imported, folder: Path) -> None:
    verify = importlib.import_module("doubling_kernel.verify")
    assert verify.changed_files() == []
    path = folder / "doubling_kernel" / "kernels" / "candidate_7.json"
    text = path.read_text()
    path.write_text(text + " ")
    assert verify.changed_files() == ["kernels/candidate_7.json"]
    path.write_text(text)


def test_what_is_not_confirmed_is_said_by_the_module_and_its_check(imported, folder: Path, capsys) -> None:
    assert "NOT CONFIRMED: candidate_7." in imported.__doc__
    verify = importlib.import_module("doubling_kernel.verify")
    verify._tell(False, "cpu", 0, [], [], "")
    assert capsys.readouterr().out.startswith("NOT CONFIRMED: candidate_7; README.md says why\n")
    verify._tell(True, "cpu", 0, [], [], "")
    assert json.loads(capsys.readouterr().out)["not_confirmed"] == ["candidate_7"]
    sure = replace(PACKAGE, provenance=[{**PACKAGE.provenance[0], "confirmed": True}])
    write_package(sure, folder.parent / "sure")
    assert "NOT CONFIRMED" not in (folder.parent / "sure" / "doubling_kernel" / "__init__.py").read_text()


def test_the_check_of_a_package_knows_wrong_outputs(imported) -> None:
    fault = importlib.import_module("doubling_kernel.verify").fault
    tolerance = {"relative_multiple": 4.0, "max_multiple": 8.0, "absolute": 0.0, "precision": "ieee", "dtype": ""}
    truth = torch.randn(64, 4096, dtype=torch.float64)
    own = truth.bfloat16()
    for factor, right in ((1.0, True), (1.1, False), (0.5, False)):
        reason, _ = fault((truth * factor).bfloat16(), own, truth, truth, tolerance=tolerance, length=4096)
        assert (reason == "") is right, factor
    whole = torch.randint(-127, 127, (64, 4096), dtype=torch.int8)
    moved, near, far = whole.clone(), whole.clone(), whole.clone()
    moved[0, :3] += 1
    near[1, :3] += 1
    far[:, :3] += 1
    found = [fault(got, whole, whole, moved, tolerance=tolerance, length=4096)[0] for got in (whole, near, far)]
    assert found == ["", "", "differs at 192 of 262144 integers"]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        write_package(PACKAGE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_names_are_such_that_python_can_import_them() -> None:
    assert [identifier(text) for text in ("softmax", "1_Linear+ReLU", "class")] == [
        "softmax",
        "_1_Linear_ReLU",
        "_class",
    ]
    for wrong in ("my-kernel", "class", "é", ""):
        with pytest.raises(UserError, match="cannot be imported"):
            checked_name(wrong)
    for taken in ("torch", "json", "tests", "aten"):
        with pytest.raises(UserError, match="of something that a package needs"):
            checked_name(taken)
    assert [operator_name(text) for text in ("softmax", "reference", "_op")] == ["softmax", "reference_op", "_op_op"]


def test_what_a_population_says_is_text_in_what_python_and_pip_read(tmp_path: Path) -> None:
    """A description with what TOML or Python do not spell; a version of PyTorch that would be lines of its own."""
    environment = {**ENVIRONMENT, "torch": '2.13\ndependencies = ["torch", "other"]\n[tool.x]\n#'}
    provenance = [
        {**PACKAGE.provenance[0], "evaluation": {**PACKAGE.provenance[0]["evaluation"], "environment": environment}}
    ]
    write_package(
        replace(PACKAGE, name="_2d_", description='Fast 🚀\n"\x00\x7f', provenance=provenance), tmp_path / "p"
    )
    project = tomllib.loads((tmp_path / "p" / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("2d", ["torch"]) and "🚀" in project["description"]
    compile((tmp_path / "p" / "_2d_" / "__init__.py").read_text(), "__init__.py", "exec")


OF = "import torch\nCASES = [{{'n': 4}}]\ndef inputs(case, generator, device):\n    return torch.rand(4, device=device)\n"
OF += "def reference(x):\n    {}\n"


@pytest.mark.parametrize(
    "text, same",
    [
        ("return x * 2", True),
        ("return x + x", True),
        ("return x * 2.1", False),
        ("return (x * 2).half()", False),
        ("return x * 2, x", False),
        ("return x.mul_(2)\nMUTATES = ('x',)", False),
        ("return (x * 2)[None]", False),
    ],
)
def test_a_package_holds_one_operator(tmp_path: Path, text: str, same: bool) -> None:
    for name, body in (("one", "return 2 * x"), ("two", text)):
        (tmp_path / f"{name}.py").write_text(OF.format(body))
    assert computes_the_same(*(load(str(tmp_path / f"{name}.py")) for name in ("one", "two"))) == same


def test_what_a_kernel_changes_shares_no_memory_with_another_input(imported) -> None:
    shared = sys.modules[f"{imported.__name__}._launch"].shared
    x = torch.zeros(8, 4)
    for inputs, changed in (((x, x, 1), [0]), ((x[2:6], x[5:]), [1]), ((1.0, x[:, 1:], x[:, :2]), [2])):
        assert "share memory" in shared(inputs, changed)
    for inputs, changed in (((x, x), []), ((x[:4], x[4:], x[:0]), [0, 1]), ((x, 1.0, x.clone()), [0, 2])):
        assert shared(inputs, changed) == ""


def test_a_builtin_task_is_exported_with_its_seed(tmp_path: Path) -> None:
    task = load("softmax")
    for name, text in task_files(task).items():
        (tmp_path / name).write_text(text)
    assert load(str(tmp_path / "task.py")).seed == task.seed


def test_a_task_that_needs_a_neighbour_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text("N = 4\n")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom shapes import N\nCASES = [{'n': N}]\n"
        "def inputs(case, generator, device):\n    return torch.ones(case['n'], device=device)\n"
        "def reference(x):\n    return 2 * x\n"
    )
    with pytest.raises(UserError, match=r"imports shapes.py, which lies beside it"):
        task_files(load(str(tmp_path / "mine.py")))
    (tmp_path / "task.py").write_text("def run(x):\n    return 2 * x\n")
    for new, said in (
        ("def later():\n    import shapes\nN = 4", "imports shapes.py"),
        ("import evo_kernel.tasks.vendor\nN = 4", "which a package does without"),
        ("SEED = 'task.py'\nN = 4", "has a seed of the name"),
    ):
        (tmp_path / "other.py").write_text((tmp_path / "mine.py").read_text().replace("from shapes import N", new))
        with pytest.raises(UserError, match=said):
            task_files(load(str(tmp_path / "other.py")))
    assert not has_hidden_cases(load(str(tmp_path / "mine.py"))) and has_hidden_cases(load("softmax"))


def test_every_builtin_task_can_be_an_operator() -> None:
    from evo_kernel.tasks.traits import takes_fakes

    assert [name for name in builtin_names() if not takes_fakes(load(name))] == ["grouped_matmul"]


def test_a_backward_task_is_matched_by_the_names_of_its_parameters() -> None:
    from evo_kernel.errors import TaskError
    from evo_kernel.tasks.traits import backward_arguments

    assert backward_arguments(load("attention_causal"), load("attention_backward")) == [0, 1, 2, 3]
    for other in (("attention_full", "attention_backward"), ("cross_entropy", "cross_entropy_backward")):
        with pytest.raises(TaskError, match="does not compute the gradients"):
            backward_arguments(*map(load, other))  # it is causal; it returns the loss, too
    with pytest.raises(TaskError, match="give a task that takes these, by these names"):
        backward_arguments(load("layernorm"), load("layernorm_backward"))  # wants the rows' statistics


SINES = """
import torch

CASES = [{"m": 5}, {"m": 7}]

def inputs(case, generator, device):
    return tuple(torch.randn(case["m"], 9, generator=generator, device=device) for _ in range(COUNT))

"""


@pytest.mark.parametrize(
    ("gradient", "says"),
    [
        ("    return torch.cos(x) * dy", ""),
        ("    return torch.cos(x) * dy * (1 + (len(x) == 7))", "on a check case"),  # right on the first case alone
        ("    return torch.cos(x) * dy.clamp(-6, 6)", "on a check case"),  # of usual gradients of outputs
        ("    x.copy_(torch.cos(x) * dy)\n\nMUTATES = ('x',)", "changes its inputs"),
    ],
)
def test_a_backward_task_is_held_against_all_check_cases_and_changes_nothing(gradient, says, tmp_path) -> None:
    from evo_kernel.errors import TaskError
    from evo_kernel.tasks.traits import backward_arguments

    texts = {"sines": "COUNT = 1\ndef reference(x):\n    return torch.sin(x)\n",
             "slopes": f"COUNT = 2\ndef reference(x, dy):\n{gradient}\n"}  # fmt: skip
    tasks = []
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(SINES + text)
        tasks.append(load(tmp_path / f"{name}.py"))
    if not says:
        assert backward_arguments(*tasks) == [0, 1]
        return
    with pytest.raises(TaskError, match=says):
        backward_arguments(*tasks)
