"""KernelBench problems as tasks: seeds, casts, tensors of the module, small sizes, and what a wrong name is told."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benchmarks.importing import survey
from evo_kernel import user_cache
from evo_kernel.errors import TaskError
from evo_kernel.fitness.spool.task_files import packed, unpacked
from evo_kernel.tasks.compiled.child import compiled
from evo_kernel.tasks.importers.checkout import remembered
from evo_kernel.tasks.importers.kernelbench import entries, level_of
from evo_kernel.tasks.importers.shrink_sizes import ODD, constants, reduced, run_fake, telling
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.lowering.lower import lower
from evo_kernel.tasks.probe import probe
from evo_kernel.tasks.problems import Problem
from evo_kernel.types import CaseKind
from tests.support.benchmark import LINEAR, SOFTMAX, checkout, download, model_hub


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("checkout"))


def named(root, rest):
    return load(f"kernelbench:{root}/{rest}")


def drawn(task, case, seed=3):
    return task.inputs(case, torch.Generator().manual_seed(seed), "cpu")


def test_entries_are_found_from_the_root_a_level_and_a_number(root):
    assert [e.label for e in entries(f"{root}")][-3:] == ["level2/1", "level3/10", "level4/1"]
    assert [e.name for e in entries(f"{root}/KernelBench/level1/")] == [str(number) for number in range(1, 10)]
    (one,) = entries(f"{root}/level2/1_Linear_GroupNorm.py")
    assert one.title == "Linear GroupNorm" and load(one.spec).name == "kernelbench_2_1"


def test_a_problem_that_travelled_has_the_same_baseline(root, tmp_path):
    here = named(root, "level1/1")
    there = unpacked(packed(here), tmp_path)
    assert there.identity == here.identity and ":" in here.spec and ":" not in there.spec
    assert compiled(there).text == compiled(here).text and "if x.shape" in compiled(here).text


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("nowhere/level1/1", "There is no folder"),
        ("{root}/KernelBench/level1", "names 9 problems"),
        ("{root}/level9/1", "It has level1, level2, level3, level4"),
        ("{root}/level1/77", "has no problem '77'"),
        ("{root}/level1/3", "Install no_such_module_of_anyone for it"),
        ("{root}/level4/1", "Install model_hub for it"),
        ("{root}/level1/4", "has no get_inputs"),
        ("{root}/KernelBench/level1/1_Softmax.py/level1/1", "no folder"),
    ],
)
def test_mistakes_say_what_where_and_what_to_do(root, rest, says):
    with pytest.raises(TaskError, match=says) as caught:
        load("kernelbench:" + rest.format(root=root))
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_a_folder_without_levels_is_no_checkout(tmp_path):
    with pytest.raises(TaskError, match="is no KernelBench checkout"):
        load(f"kernelbench:{tmp_path}/level1/1")


def test_weights_are_inputs_with_the_values_that_the_benchmark_seeds(root):
    task = named(root, "level2/1")
    assert task.input_names == ("x", "fc_weight", "fc_bias", "norm_weight", "norm_bias")
    case = task.cases_of(CaseKind.CHECK)[0]
    inputs = drawn(task, case)
    names = {}
    exec(LINEAR, names)
    torch.manual_seed(42)
    model = names["Model"](case["features"], case["out"], case["groups"])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(inputs[1:], model.parameters(), strict=True))
    assert torch.equal(task.reference(*inputs), model(inputs[0]).detach())
    other = drawn(task, case, seed=4)
    assert not torch.equal(inputs[0], other[0]) and torch.equal(inputs[1], other[1])


def test_other_weights_give_other_outputs_and_float64_is_computed_in_float64(root):
    task = named(root, "level2/1")
    x, weight, *rest = drawn(task, task.cases_of(CaseKind.CHECK)[0])
    assert not torch.allclose(task.reference(x, weight, *rest), task.reference(x, weight.flip(0), *rest))
    assert task.truth(x, weight, *rest)[0].dtype == torch.float64


def test_drawing_leaves_torchs_own_numbers_alone(root):
    task = named(root, "level2/1")
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    drawn(task, task.cases_of(CaseKind.CHECK)[0])
    assert torch.equal(torch.rand(3), wanted)


def test_threads_that_draw_at_once_draw_what_one_would(root):
    """A judge draws inputs of several cases side by side, and again for the reference: they must be the same."""
    task = named(root, "level2/1")
    case = task.cases_of(CaseKind.SEARCH)[0]
    alone = drawn(task, case)[0]
    with ThreadPoolExecutor(4) as threads:
        for made in threads.map(lambda _: drawn(task, case)[0], range(16)):
            assert torch.equal(made, alone)


def test_check_cases_are_small_and_keep_groups_of_more_than_one(root):
    task = named(root, "level2/1")
    (own,) = task.cases_of(CaseKind.SEARCH)
    assert dict(own) == {"batch_size": 512, "features": 4096, "out": 2048, "groups": 64}
    for case in task.cases_of(CaseKind.CHECK):
        assert case["out"] // case["groups"] >= 2 and case["batch_size"] >= 2
        assert sum(value.numel() for value in drawn(task, case)) < 100_000


def test_sizes_that_must_stay_equal_shrink_together(root):
    task = named(root, "level1/7")
    case = task.cases_of(CaseKind.CHECK)[0]
    assert case["batch_size"] == case["dim"] < 32


def test_sizes_in_proportion_shrink_together(root):
    case = named(root, "level1/9").cases_of(CaseKind.CHECK)[0]
    assert case["pairs"] == 2 * case["width"] < 200


def test_sizes_that_get_inputs_spells_out_shrink_too(root):
    task = named(root, "level1/8")
    (own,) = task.cases_of(CaseKind.SEARCH)
    assert own["size_224"] == 224 and task.input_specs(own)[0].shape == (4096, 3, 224, 224)
    assert drawn(task, task.cases_of(CaseKind.CHECK)[0])[0].shape[-1] < 64


def test_a_size_stays_where_the_output_would_else_say_nothing():
    sums = Problem(SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.relu(x.sum(1) - 4000)"), "sums.py")
    own = constants(sums)
    small = reduced(sums, own, ODD)
    assert small["dim"] < 128 and telling(sums, own, small) == small | {"dim": own["dim"]}
    plain = Problem(SOFTMAX, "softmax.py")
    small = reduced(plain, own, ODD)
    assert telling(plain, own, small) == small


def test_a_number_of_layers_stays(tmp_path):
    """A kernel takes every weight: it could not be called for a network of fewer. Of a network, sizes are numbers."""
    layers = "super().__init__()\n        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(depth)])"
    text = SOFTMAX.replace("super().__init__()", layers).replace("import torch", "import torch\n\ndepth = 23", 1)
    text = text.replace(
        "torch.softmax(x, dim=1)", "torch.softmax(x, dim=1) + sum(one.bias.sum() for one in self.layers)"
    )
    problem = Problem(text, "deep.py")
    own = constants(problem)
    small = reduced(problem, own, ODD)
    assert small["depth"] == own["depth"] == 23 and small["dim"] < own["dim"]
    (tmp_path / "level3").mkdir()
    (tmp_path / "level3/1_Deep.py").write_text(text)
    assert ".shape[" in (lowered := lower(load(f"kernelbench:{tmp_path}/level3/1@mixed")).text)
    assert "= x.shape" not in lowered


def test_class_numbers_keep_their_dtype_and_the_task_says_so(root):
    task = named(root, "level1/2")
    assert drawn(task, task.cases_of(CaseKind.CHECK)[0])[1].dtype == torch.int64
    assert "keep their dtypes" in task.description


def test_state_that_forward_overwrites_is_an_input_that_stays_as_it_is(root):
    task = named(root, "level3/10")
    assert task.input_names[:3] == ("x", "start", "hidden")
    assert "norm_running_mean" not in task.input_names  # training mode: nobody reads it
    assert not {finding.name for finding in probe(task)} & {"reference-mutates", "reference-varies", "inputs-vary"}


STATEFUL = SOFTMAX.replace("super().__init__()", "super().__init__()\n        self.kept, self.calls = MADE, 0")
STATEFUL = (
    STATEFUL.replace("torch.softmax(x, dim=1)", "self.forget(x)")
    + """
def forget(self, x):
    self.calls += 1
    self.kept = x if self.kept is None else x + self.kept
    if not hasattr(self, "last"):
        self.register_buffer("last", self.kept * self.calls)
    return self.last
Model.forget = forget
"""
)


def test_what_a_module_remembers_of_a_call_is_forgotten(tmp_path):
    path = checkout(tmp_path) / "KernelBench/level1/1_Softmax.py"
    path.write_text(STATEFUL.replace("MADE", "None"))
    task = named(tmp_path, "level1/1")
    assert not any(finding.fatal for finding in probe(task))
    x = drawn(task, task.cases_of(CaseKind.CHECK)[0])[0]
    assert all(torch.equal(task.outputs(x)[0], x) for _ in range(2))


def test_a_module_that_keeps_tensors_in_a_list_is_refused(tmp_path):
    path = checkout(tmp_path) / "KernelBench/level1/1_Softmax.py"
    path.write_text(STATEFUL.replace("MADE", "[torch.ones(1)]").replace("x + self.kept", "x + self.kept[0]"))
    with pytest.raises(TaskError, match="keeps tensors in kept"):
        named(tmp_path, "level1/1")


def test_allow_is_kernels_where_every_operation_has_one(root):
    assert named(root, "level2/1").allow == named(root, "level1/1").allow == "kernels"
    bessel = named(root, "level1/6")
    assert bessel.allow == "mixed" and "special_i0e" in lower(bessel).text


def test_mixed_lets_kernels_call_pytorch_and_stays_with_the_task(root):
    assert named(root, "level2/1@mixed").allow == "mixed"
    (one,) = entries(f"{root}/level2/1@mixed")
    assert one.spec.endswith("/level2/1@mixed") and load(one.spec).allow == "mixed"
    assert all(e.spec.endswith("@mixed") for e in entries(f"{root}@mixed")) and one.label == "level2/1"


@pytest.mark.parametrize(
    ("rest", "precision"),
    [("level1/8@tf32", "tf32"), ("level1/8@ieee", "ieee"), ("level1/8", "ieee"), ("level2/1@tf32", "ieee")],
)
def test_tf32_is_allowed_where_the_harness_lets_its_reference_convolve_in_it(root, rest, precision):
    task = named(root, rest)
    assert task.tolerance.precision == precision
    assert task.name.endswith("_tf32") == rest.endswith("@tf32")


def test_endings_combine_and_a_task_has_one_precision(root):
    (one,) = entries(f"{root}/level1/8@tf32@mixed")
    assert one.spec.endswith("level1/8@mixed@tf32") and (one.group, one.label) == ("level1@tf32", "level1/8")
    task = load(one.spec)
    assert (task.allow, task.tolerance.precision) == ("mixed", "tf32") and level_of(one) == 1
    with pytest.raises(TaskError, match="one precision"):
        entries(f"{root}/level1/8@tf32@ieee")


def test_a_recurrent_network_may_use_tf32():
    network = SOFTMAX.replace("super().__init__()", "super().__init__()\n        self.net = nn.GRU(64, 8)")
    network = network.replace("torch.softmax(x, dim=1)", "self.net(x[:, None, :64])[0]")
    problem = Problem(network, "gru.py")
    assert run_fake(problem, constants(problem)).takes_tf32
    assert not run_fake(Problem(SOFTMAX, "softmax.py"), {}).takes_tf32


@pytest.mark.parametrize("rest", ["level2/1", "level1/2", "level3/10"])
def test_the_task_text_is_a_task_file_of_its_own(root, rest, tmp_path):
    task = named(root, rest)
    path = tmp_path / "written.py"
    path.write_text(task.text)
    again = load(path)
    assert (again.identity, again.allow) == (task.identity, task.allow)
    case = task.cases_of(CaseKind.CHECK)[0]
    for mine, theirs in itertools.zip_longest(drawn(task, case), drawn(again, again.case(case.name))):
        assert torch.equal(mine, theirs)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    root = checkout(tmp_path)
    place = root / "KernelBench/level1/1_Softmax.py"
    place.write_bytes(b"\xef\xbb\xbf" + place.read_bytes())
    assert named(root, "level1/1").name == "kernelbench_1_1"


@pytest.mark.parametrize("device", [True, False])
def test_a_problem_that_is_no_regular_file_is_refused(tmp_path, device):
    root = checkout(tmp_path)
    place = root / "KernelBench/level1/1_Softmax.py"
    place.unlink()
    place.symlink_to("/dev/zero") if device else os.mkfifo(place)
    with pytest.raises(TaskError, match="is no regular file"):
        named(root, "level1/1")


def test_a_task_is_written_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[str] = []

    def text_of() -> str:  # as in a new process
        return remembered(lambda entry, text: made.append(text) or f"# {text}")(found, problem.read_text())

    root = checkout(tmp_path)
    (found,) = entries(f"{root}/level1/1")
    problem = found.path
    assert text_of() == text_of() and len(made) == 1
    problem.write_text(problem.read_text() + "\n")
    assert text_of().endswith("\n\n") and len(made) == 2
    assert user_cache.clear() == 2 and text_of() and len(made) == 3


def test_surveys_tell_the_degenerate_apart(root):
    softmax = survey(f"kernelbench:{root}/level1/1")
    assert (softmax.loads, softmax.checks, softmax.first) == (True, True, "kernels")
    assert softmax.findings == () and not softmax.degenerate
    noise = survey(f"kernelbench:{root}/level1/5")
    assert noise.degenerate and not noise.checks and "reference-varies" in noise.findings
    linear = survey(f"kernelbench:{root}/level2/1")
    assert not linear.degenerate and linear.first == "kernels"
    broken = survey(f"kernelbench:{root}/level1/3")
    assert not broken.loads and "no_such_module" in broken.reason


def test_inputs_that_do_not_fit_are_refused_in_one_sentence(root, monkeypatch):
    task = named(root, "level1/8")
    monkeypatch.setattr("evo_kernel.tasks.scripts.free_bytes", lambda device: 1_000_000)
    with pytest.raises(TaskError, match=r"need 2\.5 GB and cpu has 0\.0 GB free\. Run it on"):
        drawn(task, task.cases_of(CaseKind.SEARCH)[0])


def test_a_model_from_a_hub_is_read_from_the_local_cache(root, tmp_path, monkeypatch):
    model_hub(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    spec = f"kernelbench:{root}/level4/1"
    with pytest.raises(TaskError, match="cache\\. Its model comes from a hub: put it into the local cache") as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    download(tmp_path)
    task = load(spec)
    case = task.cases_of(CaseKind.CHECK)[0]
    x, weight = drawn(task, case)  # the tied weight once; class numbers stay class numbers
    assert x.dtype == torch.int64 and x.numel() < 200 and weight.shape == (199, 16)
    assert torch.equal(task.reference(x, weight), torch.tanh(weight[x]) @ weight.T)  # its dropout is off
    assert survey(spec).first == "kernels"
