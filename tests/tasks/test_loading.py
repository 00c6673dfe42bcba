"""Loading: what a task file may say, what is forgiven, and how each mistake is answered."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo_kernel.errors import TaskError
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import builtin_names, load, public_text
from evo_kernel.tasks.task import TensorSpec, Tolerance
from evo_kernel.types import CaseKind

BODY = """
def inputs(case, generator, device):
    return torch.randn(case["n"], generator=generator, device=device)


def reference(x):
    return x * 2
"""
CASES = 'CASES = {"check": [{"n": 7}], "search": [{"n": 64}], "confirm": [{"n": 65}]}\n'


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def mistake(path):
    with pytest.raises(TaskError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    return message


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_tasks_load_with_everything_they_promise(name):
    task = load(name)
    assert task.name == name and task.description and task.seed and not task.notes
    assert 2 <= len(task.cases_of(CaseKind.CHECK)) <= 4
    assert 1 <= len(task.cases_of(CaseKind.SEARCH)) <= 3
    assert len(task.cases_of(CaseKind.CONFIRM)) >= 2
    assert len({case.name for case in task.cases}) == len(task.cases)
    for case in task.cases:
        assert task.flops(case) > 0
        if name == "decode_attention":  # the rest of a sequence's last page is not needed
            assert 0.95 < task.bytes(case) / tensor_bytes(task, case) <= 1 or case.kind is CaseKind.CHECK
        elif name != "grouped_matmul" or case.kind is CaseKind.CHECK:  # its reference reads offsets: no fake ones
            assert task.bytes(case) == tensor_bytes(task, case)


def tensor_bytes(task, case):
    """Bytes of every input and every output, from their shapes alone unless the reference reads values."""
    if task.name == "grouped_matmul":
        inputs = task.inputs(case, torch.Generator().manual_seed(0), "cpu")
        return sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *task.outputs(*inputs)))
    with FakeTensorMode():
        specs = task.input_specs(case)
        inputs = [spec.empty("cpu") if isinstance(spec, TensorSpec) else spec for spec in specs]
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        scope = task.reference_function.__globals__
        if "SCORES_AT_ONCE" in scope:
            scope["SCORES_AT_ONCE"] = 1 << 60  # what has no memory need not be computed in pieces
        return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *task.outputs(*inputs)))


def test_a_file_becomes_a_task(write):
    path = write('"""Doubles.\n\nMore."""\nimport torch\n' + CASES + BODY)
    task = load(str(path))
    assert (task.name, task.path, task.description) == ("mine", path, "Doubles.")
    assert task.identity == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (task.allow, task.tolerance, task.seed, task.host_known) == ("kernels", Tolerance(), None, frozenset())
    case = task.cases_of(CaseKind.SEARCH)[0]
    assert (case.name, case["n"], dict(case), task.case("n64")) == ("n64", 64, {"n": 64}, case)
    (x,) = task.inputs(case, torch.Generator().manual_seed(1), "cpu")
    (again,) = task.inputs(case, torch.Generator().manual_seed(1), "cpu")
    assert torch.equal(x, again)
    assert torch.equal(task.reference(x), x * 2)
    assert task.truth(x)[0].dtype == torch.float64
    assert task.flops(case) is None and task.bytes(case) is None
    assert task.baselines["eager"](x).equal(x * 2)
    assert task.input_names == ("x",)


def test_inputs_and_outputs_may_be_lists(write):
    body = BODY.replace("device=device)", "device=device)]").replace("return torch", "return [torch")
    task = load(write("import torch\n" + CASES + body.replace("return x * 2", "return [x * 2, x]")))
    (x,) = task.inputs(task.cases[0], torch.Generator().manual_seed(1), "cpu")
    assert [out.equal(wanted) for out, wanted in zip(task.outputs(x), (x * 2, x), strict=True)] == [True, True]


def test_a_folder_with_task_py_and_a_helper_beside_it(write):
    write("FACTOR = 3\n", "double/helper_of_double.py")
    path = write("import torch\nfrom helper_of_double import FACTOR\n" + CASES + BODY, "double/task.py")
    assert load(path.parent).name == "double"


def test_helpers_of_one_name_beside_two_tasks(write):
    body = "import torch\nfrom helpers_of_both import FACTOR\n" + CASES + BODY.replace("x * 2", "x * FACTOR")
    for factor in (3, 4):
        write(f"FACTOR = {factor}\n", f"times{factor}/helpers_of_both.py")
        task = load(write(body, f"times{factor}/task.py"))
        assert task.outputs(torch.ones(1))[0].item() == factor


def test_helpers_of_one_name_beside_two_tasks_that_are_loaded_at_once(write):
    body = "import torch\nfrom slow_helpers import FACTOR\n" + CASES + BODY.replace("x * 2", "x * FACTOR")
    paths = []
    for factor in (3, 4):
        write(f"import time\ntime.sleep(0.2)\nFACTOR = {factor}\n", f"slow{factor}/slow_helpers.py")
        paths.append(write(body, f"slow{factor}/task.py"))
    with ThreadPoolExecutor(2) as threads:
        tasks = list(threads.map(load, paths))
    assert [task.outputs(torch.ones(1))[0].item() for task in tasks] == [3, 4]


def test_every_optional_name(write):
    write("def run(x): ...\n", "kernel.py")
    path = write(
        "import torch\n"
        'CASES = {"check": {"odd": {"n": 7}}, "search": {"big": {"n": 64}}}\n'
        'ALLOW = "mixed"\nPRECISION = "tf32"\nTOLERANCE = {"max_multiple": 16, "atomics": True}\nHOST_KNOWN = {0}\n'
        'SEED = "kernel.py"\nBASELINES = {"vendor": torch.neg}\n'
        'def flops(case): return case["n"]\ndef bytes(case): return None\n' + BODY
    )
    task = load(path)
    assert [case.name for case in task.cases] == ["odd", "big", "confirm-big"]
    assert (task.allow, task.host_known) == ("mixed", frozenset({0}))
    assert task.tolerance == Tolerance(max_multiple=16, atomics=True, precision="tf32")
    assert list(task.baselines) == ["eager", "vendor"]
    assert (task.flops(task.cases[0]), task.bytes(task.cases[0])) == (7.0, None)
    assert first_kernel(task).text == "def run(x): ...\n"
    assert "fresh seeds" in task.notes[0]


def test_a_named_tolerance(write):
    task = load(write('import torch\nTOLERANCE = "loose"\n' + CASES + BODY))
    assert task.tolerance == Tolerance(relative_multiple=16.0, max_multiple=32.0)


def test_a_bare_list_is_search_cases_and_small_ones_are_checked_too(write):
    task = load(write('import torch\nCASES = [{"n": 64}, {"n": 9_000_000}, {"n": 64}]\n' + BODY))
    assert [case.name for case in task.cases_of(CaseKind.CHECK)] == ["check-n64", "check-n64-2"]
    assert [case.name for case in task.cases_of(CaseKind.SEARCH)] == ["n64", "n9000000", "n64-2"]
    assert [case["n"] for case in task.cases_of(CaseKind.CONFIRM)] == [64, 9_000_000, 64]
    assert len(task.notes) == 2


def test_large_search_cases_alone_say_which_line_to_add(write):
    path = write('import torch\nCASES = {"search": [{"n": 9_000_000}]}\n' + BODY)
    message = mistake(path)
    line = "CASES[\"check\"] = [{'n': 67}]"
    assert line in message
    load(write(path.read_text() + line + "\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def reference(x:\n", ":1: this is not valid Python"),
        ("import torch\nraise RuntimeError('no\\nluck')\n", ":2: running the task file failed: RuntimeError: no"),
        ("import sys\nsys.exit(3)\n", ":2: running the task file failed: SystemExit: 3"),
        ("import nothing_like_this\n", ":1: running the task file failed: ModuleNotFoundError"),
        (CASES, "needs a function `reference`"),
        (CASES + "def refrence(x): return x\n", "did you mean that?"),
        (CASES + "reference = 3\n", "`reference` is a int"),
        (CASES + "def reference(x): return x\n", "needs a function `inputs`"),
        (BODY, "has no CASES"),
        ("CASES = 3" + BODY, "CASES of type int"),
        ('CASES = {"serch": [{"n": 1}]}' + BODY, "Did you mean 'search'?"),
        ('CASES = {"check": [{"n": 1}]}' + BODY, "no search cases"),
        ('CASES = {"search": {"n": 1}}' + BODY, "Wrap it in a list: [{'n': 1}]"),
        ('CASES = {"search": [3]}' + BODY, "holds 3"),
        ('CASES = {"search": 3}' + BODY, "CASES['search'] is a int"),
        ('CASES = [{"n": 1, "name": "a"}, {"n": 2, "name": "a"}]' + BODY, "two cases are named 'a'"),
        ('CASES = [{"n": 1, "name": "a/b"}, {"n": 2, "name": "a_b"}]' + BODY, "two cases are named 'a_b'"),
        (CASES + 'ALLOW = "all"' + BODY, "Choose 'kernels' or 'mixed'"),
        (CASES + 'PRECISION = "fp8"' + BODY, "Choose 'ieee' or 'tf32'"),
        (CASES + 'TOLERANCE = "lose"' + BODY, "Named ones are default, loose"),
        (CASES + 'TOLERANCE = {"max_multple": 3}' + BODY, "Did you mean 'max_multiple'?"),
        (CASES + 'TOLERANCE = {"absolute": -1}' + BODY, "not negative"),
        (CASES + "TOLERANCE = 0.1" + BODY, "name or a dict"),
        (CASES + 'HOST_KNOWN = "offsets"' + BODY, "set of input positions"),
        (CASES + 'MUTATES = "x"' + BODY, 'a tuple of parameters of reference, such as MUTATES = ("x",)'),
        (
            CASES + 'MUTATES = ("xs",)' + BODY,
            "MUTATES names 'xs'; the parameters of reference are x. Did you mean 'x'?",
        ),
        (CASES + 'HOST_KNOWN = {0}; MUTATES = ("x",)' + BODY, "HOST_KNOWN and MUTATES both name input 0 (x)"),
        (CASES + 'SEED = "nowhere.py"' + BODY, "SEED 'nowhere.py' cannot be read (FileNotFoundError"),
        (CASES + "SEED = 3" + BODY, "SEED is a int"),
        (CASES + "BASELINES = [1]" + BODY, "BASELINES must be a dict of functions"),
        (CASES + "flops = 12" + BODY, "`flops` is a int"),
    ],
)
def test_a_mistake_in_a_file_is_answered(write, text, expected):
    assert expected in mistake(write(text))


def test_mistakes_that_show_when_functions_are_called(write):
    path = write(
        "import torch\n" + CASES + "def flops(case): return 'many'\n"
        'def inputs(case, generator, device): return case["k"]\ndef reference(x): return None\n'
    )
    task = load(path)
    with pytest.raises(TaskError, match=r"mine\.py:4: inputs.* for case 'n7' \(n=7\) failed: KeyError: 'k'"):
        task.inputs(task.cases[0], torch.Generator(), "cpu")
    with pytest.raises(TaskError, match="reference returned a NoneType"):
        task.reference(torch.ones(1))
    with pytest.raises(TaskError, match=r"mine\.py:5: reference\(x\) cannot be called with the 2 values that inputs"):
        task.reference(torch.ones(1), torch.ones(1))
    with pytest.raises(TaskError, match="flops returned 'many'"):
        task.flops(task.cases[0])
    with pytest.raises(TaskError, match="no case 'n8'; it has n7"):
        task.case("n8")


@pytest.mark.parametrize(
    ("made", "expected"), [("'x'", "a str at position 0"), ("3", "no tensor"), ("()", "no tensor")]
)
def test_inputs_must_be_tensors_and_numbers(write, made, expected):
    task = load(write(f"import torch\n{CASES}def inputs(*_): return {made}\ndef reference(x): return x\n"))
    with pytest.raises(TaskError, match=expected):
        task.inputs(task.cases[0], torch.Generator(), "cpu")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sofmax", "There is no task 'sofmax'. Did you mean 'softmax'?"),
        (
            "kernelbench:somewhere/23",
            "There is no folder somewhere/23. Name a local checkout",
        ),
        ("nowhere/mine.py", "There is no file nowhere/mine.py."),
    ],
)
def test_an_unknown_task_names_what_exists(spec, expected):
    with pytest.raises(TaskError) as caught:
        load(spec)
    assert str(caught.value).startswith(expected)


def test_a_folder_without_task_py(tmp_path):
    assert "folder without task.py" in mistake(tmp_path)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(b"x = '\xff'")
    assert "cannot be read: UnicodeDecodeError" in mistake(path)


def test_input_specs_of_a_huge_case_cost_no_memory(write):
    path = write(
        "import torch\n"
        'CASES = {"check": [{"n": 2}], "search": [{"n": 1_000_000}]}\n'
        "def inputs(case, generator, device):\n"
        '    x = torch.randn(case["n"], case["n"], generator=generator, device=device, dtype=torch.bfloat16)\n'
        "    return x.t(), 3, torch.randint(0, 9, (4,), generator=generator, device=device), 0.5\n"
        "def reference(x, times, index, scale): return x * times * scale + index.sum()\n"
    )
    task = load(path)
    n = 1_000_000
    assert task.input_specs(task.cases_of(CaseKind.SEARCH)[0]) == (
        TensorSpec("bfloat16", (n, n), (1, n)),
        3,
        TensorSpec("int64", (4,), (1,)),
        0.5,
    )


def test_inputs_that_read_values_are_drawn_for_their_specs(write):
    path = write(
        "import torch\n" + CASES + "def inputs(case, generator, device):\n"
        '    n = int(torch.randint(1, case["n"], (1,), generator=generator).item())\n'
        "    return torch.randn(max(n, 1), generator=generator, device=device)\n"
        "def reference(x): return x\n"
    )
    task = load(path)
    (spec,) = task.input_specs(task.cases[0])
    assert isinstance(spec, TensorSpec) and 1 <= spec.shape[0] < 7


@pytest.mark.parametrize(("reads", "of_one_row"), [("", {0}), ("    bool(x.sum() > 0)\n", set())])
def test_what_a_reference_borrows_is_told_by_case(write, reads, of_one_row):
    """A transposed row lies as it did; where values are read, timed cases have what all check cases have."""
    cases = 'CASES = {"check": [{"n": 1}, {"n": 3}], "search": [{"n": 1, "name": "row"}, {"n": 64}]}\n'
    body = BODY.replace('case["n"]', 'case["n"], 5').replace("x * 2", "x.t().contiguous(), x[0]")
    task = load(write("import torch\n" + cases + body.replace("    return x.t()", reads + "    return x.t()")))
    judged = (*task.cases_of(CaseKind.CHECK), *task.cases_of(CaseKind.SEARCH))
    found = {case.name: set(task.borrowed_outputs(case)) for case in judged}
    assert found == {"n1": {0, 1}, "n3": {1}, "row": of_one_row | {1}, "n64": {1}}


def test_the_layout_of_an_output_is_that_of_a_case_without_ones(write):
    """A transposed row lies as it did."""
    cases = 'CASES = {"check": [{"n": 1}], "search": [{"n": 1, "name": "row"}, {"n": 64}]}\n'
    body = BODY.replace('case["n"]', 'case["n"], 5').replace("x * 2", "(x * 2).t().contiguous()")
    assert load(write("import torch\n" + cases + body)).output_orders == ((0, 1),)


def test_a_card_shows_check_and_search_but_nothing_of_confirm(write):
    task = load(write("import torch\n" + CASES + BODY))
    card = task.card()
    assert [(case.name, case.kind) for case in card.cases] == [("n7", CaseKind.CHECK), ("n64", CaseKind.SEARCH)]
    assert card.cases[0].inputs == (("float32", (7,), (1,)),)
    assert (card.name, card.allow, card.precision, card.atomics) == ("mine", "kernels", "ieee", False)
    assert "65" not in card.reference and "return x * 2" in card.reference


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_card_hides_its_confirm_cases(name):
    task = load(name)
    card = task.card()
    scope = {}
    exec(compile(card.reference, name, "exec"), scope)
    assert scope["CASES"]["confirm"] == [] and len(scope["CASES"]["search"]) == len(task.cases_of(CaseKind.SEARCH))
    for case in card.cases:
        specs = task.input_specs(task.case(case.name))
        assert len(specs) == len(task.input_names)
        assert len(case.inputs) == sum(isinstance(spec, TensorSpec) for spec in specs)


@pytest.mark.parametrize(
    "text",
    [
        'CASES = {"check": [{"é": 1}], "confirm": [\n  {"n": 4711},\n  {"n": 2}], "search": [{"n": 3}]}\n',
        'CASES = {"search": [{"n": 3}]}\nCASES["confirm"] = [{"n": 4711}]\n',
        'CASES = dict(search=[{"n": 3}], confirm=[{"n": 4711}])\n',
        'CASES = {"search": [{"n": 3}]}\nCASES.update({"confirm": [{"n": 4711}]})\n',
        'CASES: dict = {"search": [{"n": 3}], "confirm": [{"n": 4711}]}\n',
        'CASES = {"search": [{"n": 3}]}\nfor n in (4711,):\n    CASES.setdefault("confirm", []).append({"n": n})\n',
        'CASES = {"search": [{"n": 3}]} | {"confirm": [{"n": 4711}]}\n',
    ],
)
def test_public_text_hides_confirm_however_it_is_written(text):
    shown = public_text("import torch\n" + text + "def reference(x): return 'confirm'\n")
    assert "4711" not in shown and "return 'confirm'" in shown
    compile(shown, "shown", "exec")


@pytest.mark.parametrize("line", [
    "from evo_kernel.tasks.problems import Problem", "from evo_kernel.tasks.calls import Called",
    "from evo_kernel.tasks.interpreted import Interpreted",
    "from evo_kernel.tasks import shared_prompts, vendor",
])  # fmt: skip
def test_what_the_texts_of_tasks_import_stays_where_they_look_for_it(line: str) -> None:
    found: dict[str, object] = {}
    exec(line, found)  # a text decides its task's identity: files and populations of earlier versions hold these lines
    assert all(found[name.strip()] for name in line.partition(" import ")[2].split(","))
