"""Every reference of the table is lowered once and must be right on all its shapes, executed without a GPU."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import traceback
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from evo_kernel.errors import LoweringError
from evo_kernel.tasks import first, loading
from evo_kernel.tasks.lowering import lower as lowering
from evo_kernel.tasks.lowering import trace
from evo_kernel.tasks.lowering.lower import NETWORK, lower, lower_function
from evo_kernel.tasks.lowering.trace import TooLarge
from evo_kernel.types import Source
from tests.support.nan import with_nan
from tests.support.once import made_once
from tests.support.scripts import script
from tests.tasks.test_lowering_references import TABLE, Entry

CHILD = """
import importlib.util, sys, traceback, torch
from pathlib import Path
from evo_kernel.fitness.ir.jit import install
torch.set_num_threads(1)
install()
for path in map(Path, sys.argv[1:]):
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        results = []
        for inputs in torch.load(path.with_suffix(".in"), weights_only=True):
            out = module.run(*inputs)
            results.append([out] if isinstance(out, torch.Tensor) else list(out))
    except Exception:
        results = traceback.format_exc()
    torch.save(results, path.with_suffix(".out"))
"""

PADDED = "convolution"
"""In a module: NaN of a weight times the zeros around an image is NaN, which oneDNN leaves out."""
ALLOWED = {
    "empty", "empty_like", "empty_strided", "full", "fill_", "view", "permute", "transpose", "expand", "unsqueeze",
    "squeeze", "slice", "select", "narrow", "split", "split_with_sizes", "diagonal", "unfold", "unbind", "t", "alias",
    "detach", "as_strided", "device", "_unsafe_view", "reshape", "_reshape_alias",
}  # fmt: skip


def draw(item: Entry):
    generator = torch.Generator().manual_seed(7)
    return [item.draw(generator, shape) for shape in item.shapes]


PARTS = 3
"""Of the table, which are lowered beside one another: it takes longer than any other fixture."""


def lower_and_run(part, folder):
    """Fill a folder with modules of a part of the table, and with their results in one process."""
    paths = []
    for name, item in [*TABLE.items()][part::PARTS]:
        cases = draw(item)
        try:
            text = lower_function(item.reference, cases, name=name)
        except Exception:  # noqa: BLE001 - shown by the test of this entry
            (folder / f"{name}.error").write_text(traceback.format_exc())
            continue
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(text)
        torch.save([*cases, with_nan(cases[0])], folder / f"{name}.in")
    subprocess.run(script("-c", CHILD, *paths), check=True, timeout=900)


@pytest.fixture(scope="module")
def lowered(tmp_path_factory):
    """Modules of the table: their folder, name → text, and results of all cases and of one with NaN."""
    folder = made_once(tmp_path_factory, "lowered", *(partial(lower_and_run, part) for part in range(PARTS)))
    texts = {path.stem: path.read_text() for path in folder.glob("*.py")}
    return folder, texts, {name: torch.load(folder / f"{name}.out", weights_only=True) for name in texts}


def as_tuple(value):
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def relative(mine: torch.Tensor, truth: torch.Tensor) -> float:
    mine, truth = mine.double(), truth.double()
    finite = torch.isfinite(truth)
    assert torch.equal(mine[~finite].nan_to_num(), truth[~finite].nan_to_num())
    scale = truth[finite].norm().item() or 1.0
    return (mine[finite] - truth[finite]).norm().item() / scale


@pytest.mark.parametrize("name", TABLE)
def test_lowered_module_computes_the_reference(lowered, name):
    folder, texts, outs = lowered
    assert name in texts, (folder / f"{name}.error").read_text()
    assert isinstance(outs[name], list), outs[name]
    item = TABLE[name]
    for inputs, mine in zip(draw(item), outs[name][:-1], strict=True):
        eager = as_tuple(item.reference(*inputs))
        wide = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs]
        truth = as_tuple(item.reference(*wide))
        assert len(mine) == len(eager)
        for index, (a, b, c) in enumerate(zip(mine, eager, truth, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), index
            if not b.dtype.is_floating_point:
                assert torch.equal(a, b), index
                continue
            honest = max(relative(b, c), 2 * torch.finfo(b.dtype).eps)
            assert relative(a, c) <= 4 * honest, (index, inputs[0].shape, relative(a, c), honest)


@pytest.mark.parametrize("name", TABLE)
def test_nan_of_an_input_is_in_the_outputs_where_pytorch_has_it(lowered, name):
    _, texts, outs = lowered
    item = TABLE[name]
    wanted = as_tuple(item.reference(*with_nan(draw(item)[0])))
    for index, (mine, eager) in enumerate(zip(outs[name][-1], wanted, strict=True)):
        if eager.dtype.is_floating_point and PADDED in texts[name]:
            assert mine.isnan()[eager.isnan()].all(), index
        elif eager.dtype.is_floating_point:
            assert torch.equal(mine.isnan(), eager.isnan()), index
        else:
            assert torch.equal(mine, eager), index


class _Note(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class _Kernel:
    def __getitem__(self, grid):
        assert all(isinstance(size, int) for size in grid)
        return lambda *args, **options: None


@pytest.mark.parametrize("name", TABLE)
def test_host_code_only_allocates_views_and_launches(lowered, name):
    """`run` on fake tensors, launches left out: no value is read, nothing is computed by PyTorch."""
    folder, _, _ = lowered
    spec = importlib.util.spec_from_file_location(f"lowered_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for attribute in vars(module):
        if attribute.endswith("_kernel"):
            setattr(module, attribute, _Kernel())
    for inputs in draw(TABLE[name]):
        with FakeTensorMode() as mode, _Note() as note:
            fakes = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs]
            note.seen.clear()
            outputs = as_tuple(module.run(*fakes))
        assert note.seen <= ALLOWED, note.seen - ALLOWED
        held = {fake.untyped_storage()._cdata for fake in fakes if isinstance(fake, torch.Tensor)}
        mine = [out.untyped_storage()._cdata for out in outputs]
        assert not held.intersection(mine), "an output aliases an input"
        assert len(set(mine)) == len(mine), "two outputs share memory"


def refuse(reference, *inputs, **options):
    with pytest.raises(LoweringError) as error:
        lower_function(reference, [inputs], **options)
    return str(error.value)


def test_all_unsupported_operations_are_named_at_once():
    message = refuse(
        lambda x: torch.special.airy_ai(x) + torch.linalg.svdvals(x) + torch.special.airy_ai(torch.relu(x)),
        torch.ones(4, 4),
    )
    assert "aten._linalg_svd" in message and message.count("aten.special_airy_ai.default") == 1
    assert "SEED" in message and "mixed" in message and "aten.relu" not in message


def test_writing_ends_at_a_time_and_at_a_size(monkeypatch):
    def unrolled(x):
        for _ in range(6):
            x = torch.sin(x) + x
        return x

    whole = lower_function(unrolled, [[torch.empty(4, 8)]])
    for module, name, limit, says in (
        (trace, "MOST_OPERATIONS", 11, "more than 11 operations"),
        (lowering, "MOST_S", -1.0, "takes more than"),
        (lowering, "MOST_CHARACTERS", len(whole) - 1, f"{len(whole):,} characters"),
    ):
        with monkeypatch.context() as patch, pytest.raises(TooLarge, match=says):
            patch.setattr(module, name, limit)
            lower_function(unrolled, [[torch.empty(4, 8)]])
    monkeypatch.setattr(trace, "MOST_OPERATIONS", 12)
    assert lower_function(unrolled, [[torch.empty(4, 8)]]) == whole


def test_a_fault_of_lowering_leaves_the_kernels_of_torch_compile(monkeypatch):
    monkeypatch.setattr(lowering, "trace", lambda *arguments, **options: 1 // 0)
    monkeypatch.setattr(first, "compiled", lambda task, templates: Source("of torch.compile"))
    task = replace(loading.load("softmax"), seed=None)
    assert first.first_of(task) == first.First(Source("of torch.compile"), "compiled")


def test_both_directions_of_a_recurrent_layer_are_one_launch_a_step():
    """As two, a network of six layers on 512 steps would have more launches than a plan may."""

    def both(x, start, *weights):
        return torch.gru(x, start, weights, False, 2, 0.0, False, True, False)

    weights = [torch.empty(27, size) for size in (5, 9, 5, 9, 18, 9, 18, 9)]
    text = lower_function(both, [[torch.empty(4, 3, 5), torch.empty(4, 3, 9), *weights]])
    assert text.count("for step in range(") == text.count("gru_both_ways_step_kernel[(") == 2


def test_mixed_keeps_unknown_operations_as_calls():
    text = lower_function(lambda x: torch.special.airy_ai(x * 2) + 1, [(torch.ones(4, 4),)], allow_aten=True)
    assert "torch.ops.aten.special_airy_ai.default(mul)" in text and "mul_kernel[" in text and "add_kernel[" in text


def test_decisions_on_values_are_refused_with_the_way_out():
    message = refuse(lambda x: x * 2 if x.sum() > 0 else x, torch.ones(4))
    assert "cannot be traced" in message and "SEED" in message


def test_sizes_that_depend_on_values_are_refused():
    assert "torch.where" in refuse(lambda x: x[x > 0], torch.ones(4))


def test_inputs_that_are_written_are_refused_by_name():
    message = refuse(lambda scale, x: torch.relu_(x) * scale, 2.0, torch.ones(4))
    assert "writes into its input `x`" in message and "x.clone()" in message


def test_the_same_kernel_is_written_once():
    text = lower_function(lambda x, y: torch.relu(x) + torch.relu(y), [(torch.ones(4, 8), torch.ones(4, 8))])
    assert text.count("def relu_kernel(") == 1 and text.count("relu_kernel[(") == 2


def test_one_kernel_has_plain_knobs_and_several_have_prefixed_ones():
    assert "\nBLOCK = " in lower_function(torch.relu, [(torch.ones(300),)])
    text = lower_function(lambda x: torch.relu(x).sum(-1), [(torch.ones(3, 300),)])
    assert "\nRELU_BLOCK = 1024" in text and "\nROW_SUM_BLOCK = 512" in text and "\nBLOCK" not in text


def test_programs_of_few_rows_have_more_warps():
    text = lower_function(lambda x: (x.sum(1), x.amax()), [(torch.ones(140, 9000),)])
    assert "\nROW_SUM_BLOCK = 1024\nROW_SUM_NUM_WARPS = 4\n" in text
    assert "\nFULL_AMAX_BLOCK = 8192\nFULL_AMAX_NUM_WARPS = 32\n" in text


def test_a_product_with_a_vector_is_sums_shared_by_programs_where_they_are_few():
    def written(*shapes):
        return lower_function(torch.mm, [[torch.empty(shape, device="meta") for shape in shapes]])

    for few, many, kernel in (
        (((9, 1 << 20), (1 << 20, 1)), ((4096, 1 << 20), (1 << 20, 1)), "row_dot"),
        (((1, 1 << 14), (1 << 14, 300)), ((1, 1 << 14), (1 << 14, 1 << 20)), "col_dot"),
    ):
        assert all(f"{kernel}_kernel[" in written(*one) and "tl.dot(" not in written(*one) for one in (few, many))
        assert "add_parts_kernel[" in written(*few) and "add_parts_kernel[" not in written(*many)
    assert "row_dot_kernel[" in written((0, 8), (8, 1))


def test_sizes_stay_general_across_cases():
    text = lower_function(lambda x, y: x @ y, [(torch.ones(8, 8), torch.ones(8, 8))])
    assert "n0, n1 = x.shape" in text and "if " not in text.split("def run")[1]


def test_cases_that_need_another_program_get_a_branch():
    def by_size(x):
        return torch.relu(x) if x.shape[0] > 16 else torch.exp(x)

    text = lower_function(by_size, [(torch.ones(8, 8),), (torch.ones(32, 8),)])
    assert "def run_0(x)" in text and "def run_1(x)" in text and "if x.shape[0]" in text


def test_numbers_that_are_equal_but_of_other_types_or_are_none_have_branches_of_their_own():
    x = torch.ones(8, 8, dtype=torch.int32)
    text = lower_function(lambda x, s: x * s, [(x, s) for s in (2, 2.0, math.inf, math.nan, True)])
    scope = {f"run_{number}": lambda x, s, number=number: number for number in range(5)}
    exec("def run(x, s):" + text.split("def run(x, s):")[1], scope)
    assert [scope["run"](x, s) for s in (2, 2.0, math.inf, math.nan, True)] == [0, 1, 2, 3, 4]


def test_tensors_of_other_dtypes_and_ranks_and_numbers_have_branches_of_their_own():
    cases = [(torch.ones(4, 8), 2.0), (torch.ones(4, 8).double(), 2.0), (torch.ones(4, 8, 2), 2.0)]
    cases += [(torch.ones(4, 8), torch.ones(())), (torch.ones(4, 9).double(), torch.ones(8, 4, 9))]
    text = lower_function(lambda x, y: (x * y).sum(-1), cases)
    scope = {"torch": torch} | {f"run_{number}": lambda x, y, number=number: number for number in range(5)}
    exec("def run(x, y):" + text.split("def run(x, y):")[1], scope)
    assert sorted(scope["run"](*case) for case in cases) == [0, 1, 2, 3, 4]


def test_a_branch_is_taken_for_every_case_that_it_serves():
    """A case with a one in it too, which the trace's symbol excludes: here (1, 8) is served by the trace of (2, 8)."""

    def divided(x):
        return x / math.sqrt(x.shape[1])

    text = lower_function(divided, [(torch.ones(2, 8),), (torch.ones(1, 8),), (torch.ones(1, 16),)])
    assert "    if x.shape[1] == 8:\n        return run_0(x)\n    return run_1(x)" in text


def test_tiles_outside_the_triangle_that_is_kept_of_a_product_have_no_terms():
    def loops(reference):
        text = lower_function(reference, [(torch.ones(80, 80), torch.ones(80, 80))])
        return [line.split("BLOCK")[0].strip() for line in text.splitlines() if "for start" in line]

    assert loops(lambda a, b: torch.triu(a @ b, 1)) == ["for start in range(0, end,"]
    integers = torch.ones(9, 9, dtype=torch.int32)
    mixed = lower_function(lambda a, b: torch.triu(a @ b), [(integers, integers)], allow_aten=True)
    assert "aten.mm" in mixed and "triu_rows_kernel[" in mixed  # the call computes all of it
    assert loops(lambda a, b: (torch.triu(product := a @ b), product))[:1] == ["for start in range(0, k,"]


def test_precision_follows_the_task():
    inputs = (torch.ones(8, 8), torch.ones(8, 8))
    assert 'input_precision="tf32x3"' in lower_function(torch.matmul, [inputs])
    assert 'input_precision="tf32"' in lower_function(torch.matmul, [inputs], precision="tf32")


def test_offsets_are_wide_where_a_case_needs_it():
    large = torch.empty(70_000, 70_000, device="meta")
    assert "tl.program_id(0).to(tl.int64)" in lower_function(torch.relu, [(large,)])


@pytest.mark.parametrize(
    "name", ["softmax", "rmsnorm", "layernorm", "matmul", "linear_gelu", "cross_entropy", "attention"]
)
def test_built_in_tasks_lower(name):
    source = lower(loading.load(name))
    assert source.language == "triton" and "def run(" in source.text and "torch.ops" not in source.text


def test_a_network_keeps_as_symbols_only_the_sizes_that_differ():
    def reference(x, *weights):
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    def text(weights, exact=False):
        cases = [[torch.ones(batch, 8), *[torch.ones(8, 8)] * weights] for batch in (3, 5)]
        return lower_function(reference, cases, exact=exact)

    small, network = text(2), text(NETWORK)
    assert "= x2.shape" in small and "= x2.shape" not in network
    assert "= x0.shape" in network and network.count("def run") == 1
    exact = text(NETWORK, exact=True)
    assert "= x0.shape" not in exact and exact.count("def run_") == 2
