"""torch.compile's kernels, cleaned: generated without a GPU, right on a CPU, and honest about the rest."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode, fake_tensor
from torch.utils._triton import has_triton

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.compiled import module
from evo_kernel.tasks.compiled.child import compiled
from evo_kernel.tasks.compiled.kernels import clean
from evo_kernel.tasks.compiled.module import compiled_function
from evo_kernel.tasks.compiled.reading import read, tidied, used
from evo_kernel.tasks.compiled.stand_in import stand_in
from evo_kernel.tasks.first import first_of, left_to_torch
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.lowering.lower import lower_function
from evo_kernel.tasks.task import functional
from evo_kernel.types import Source
from tests.support.compiled import draw, results_of
from tests.support.nan import with_nan
from tests.support.scripts import script

pytest.importorskip("triton")


def weights(x):
    """Three constants that a reference makes itself and computes with."""
    given = torch.tensor([0.5, 1.25, 3.0], device=x.device)
    return given / given.sum()


REFERENCES = {
    # one kernel; two shapes that broadcast; a looped reduction with a second pass; Welford's; a reduction with indices;
    # a scan; a template with an epilogue; products that stay a library's
    "add_relu": (lambda x, y: torch.relu(x + y), [((5, 33), (33,)), ((7, 4), (4,))]),
    "softmax": (lambda x: torch.softmax(x * 2, -1), [((5, 33),), ((7, 4),)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), [((5, 33), (33,)), ((7, 4), (4,))]),
    "largest": (lambda x: (x.argmax(-1), x.amin(0)), [((5, 33),), ((7, 4),)]),
    "pool": (lambda x: F.max_pool2d(x[None], 3, 2, 1), [((5, 33),), ((7, 4),)]),
    "constants": (lambda x: x[torch.tensor([1, 3, 0])] * weights(x)[:, None], [((5, 33),), ((7, 4),)]),
    "number": (lambda x: x.clamp(max=torch.log(torch.tensor(2.0, device=x.device))), [((5, 33),), ((7, 4),)]),
    "clamped": (lambda x, y: (torch.minimum(x.clamp(-1, 1), y).relu(), x.amax(-1), y.amin(-1)), [((5, 33), (5, 33))]),
    "double": (lambda x: (x.double().clamp(-1, 1), x.double().amax(-1), x.double().amin(0)), [((5, 33),)]),
    "total": (lambda x: x.cumsum(-1), [((5, 300),), ((7, 4),)]),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [((35, 40), (70, 40), (70,)), ((5, 7), (9, 7), (9,))]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All references as modules, run in one process: name → (text, results of all cases and of one with NaN)."""
    folder = tmp_path_factory.mktemp("compiled")
    has_triton()  # torch keeps the answer, which is of this machine
    cases = {name: draw(shapes) for name, (_, shapes) in REFERENCES.items()}
    texts = {name: compiled_function(REFERENCES[name][0], drawn, name=name) for name, drawn in cases.items()}
    results = results_of(folder, texts, {name: [*drawn, tuple(with_nan(drawn[0]))] for name, drawn in cases.items()})
    return {name: (text, results[name]) for name, text in texts.items()}


@pytest.mark.parametrize("name", REFERENCES)
def test_one_module_is_right_on_every_shape(made, name):
    text, results = made[name]
    reference, shapes = REFERENCES[name]
    for inputs, mine in zip(draw(shapes), results[:-1], strict=True):
        wanted = reference(*inputs)
        for got, right in zip(mine, (wanted,) if isinstance(wanted, torch.Tensor) else wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=2e-5, atol=2e-5)
    assert "def run_1" not in text  # sizes are symbols: no shape has a branch of its own


@pytest.mark.parametrize("name", REFERENCES)
def test_nan_of_an_input_is_in_the_outputs_where_pytorch_has_it(made, name):
    _, results = made[name]
    reference, shapes = REFERENCES[name]
    wanted = reference(*with_nan(draw(shapes)[0]))
    for mine, eager in zip(results[-1], (wanted,) if isinstance(wanted, torch.Tensor) else wanted, strict=True):
        assert torch.equal(mine.isnan(), eager.isnan())
        assert eager.is_floating_point() or torch.equal(mine, eager)


@pytest.mark.parametrize("name", REFERENCES)
def test_nothing_of_inductor_is_left_and_blocks_are_knobs(made, name):
    text, _ = made[name]
    modules = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    assert modules <= {"torch", "triton", "triton.language", "math"}
    for word in ("inductor", "triton_helpers", "triton_heuristics", "tl_math", "async_compile", "extern_kernels"):
        assert word not in text
    assert "NUM_WARPS = " in text and ("XBLOCK = " in text or "BLOCK_M = " in text)
    if name == "linear":
        assert "tl.dot(" in text and text.count("@triton.jit") == 1  # the epilogue is in the template
        assert "triton.cdiv(n0, BLOCK_M)" in text and "BLOCK_M: tl.constexpr = " not in text


def test_sizes_are_constants_that_every_launch_passes(made):
    kernel, run = made["layer_norm"][0].split("def run(")
    assert "ks0: tl.constexpr, xnumel: tl.constexpr, r0_numel: tl.constexpr" in kernel
    assert "n1, n0, n1, triton.next_power_of_2(n1)," in run, "a short row is held whole, whatever its length"
    assert "xmask = (xindex < xnumel) | (xnumel % XBLOCK == 0)" in kernel
    assert "33" not in kernel + run


@pytest.mark.parametrize(("rows", "block"), [(1 << 16, 128), (1 << 9, 1)])
def test_short_rows_that_are_held_whole_fill_a_block_where_all_processors_have_one(rows, block):
    text = compiled_function(lambda x: torch.softmax(x, 1), [(torch.empty(rows, 16, 1),)], exact=True)
    assert f"\nXBLOCK = {block}\n" in text and "run_1" not in text and str(rows) in text


def test_where_rows_are_read_along_and_written_across_blocks_have_sectors_of_both():
    def turned(x):
        return torch.softmax(x, 1).transpose(1, 2).contiguous()

    text = compiled_function(turned, [(torch.empty(512, 2048, 512),)], exact=True)
    assert "\nXBLOCK = 64\nR0_BLOCK = 64\n" in text


def test_an_input_that_changes_in_place_is_written_by_the_kernel():
    def changed(x, y):
        x.mul_(2).add_(y)
        return x.sum(-1)

    text = compiled_function(functional(changed, (0,)), draw([((5, 33), (5, 33))]))
    assert text.count("@triton.jit") == 1 and "copy_(" not in text.split("def run(")[1]
    assert text.rstrip().endswith("return buf0"), text[-300:]


def test_a_row_is_held_whole_where_it_is_short():
    def written(*shapes):
        cases = [[torch.empty(shape, device="meta")] for shape in shapes]
        return compiled_function(lambda x: x / x.sum(-1, keepdim=True), cases)

    text = written((900, 700), (90, 200), (8, 5000))
    assert "if x.shape[1] <= 1024:" in text, "longer rows are for another branch"
    assert text.count("triton.next_power_of_2(n1)") == 1 and text.count("for r0_offset in") == 2
    text = written((900, 5000), (90, 200), (8, 700))
    assert "def run_1" not in text and text.count("for r0_offset in") == 2, "what serves long rows serves short ones"


def test_knobs_start_where_torch_compile_starts_for_the_size():
    def knobs(reference, *shapes):
        text = compiled_function(reference, [[torch.empty(shape, device="meta") for shape in shapes]])
        found = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
        return {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in found}

    assert knobs(lambda x: x + 1, (8192, 4096)) == {"XBLOCK": 1024, "NUM_WARPS": 4}
    assert knobs(lambda x: x + 1, (8, 32)) == {"XBLOCK": 256, "NUM_WARPS": 4}
    assert knobs(lambda x: x.sum(-1), (8192, 5000)) == {"XBLOCK": 1, "R0_BLOCK": 2048, "NUM_WARPS": 16}
    softmax = knobs(lambda x: torch.softmax(x, -1), (8192, 5000))
    assert softmax == {"XBLOCK": 1, "R0_BLOCK": 8192, "NUM_WARPS": 16}, "a block of the whole row, read once"
    columns = knobs(lambda x: x.relu().sum(1), (64, 512, 384))
    assert columns == {"XBLOCK": 64, "R0_BLOCK": 64, "NUM_WARPS": 16}, "of six settings, whole lines of memory"


def both_sums(x):
    """Sums of values that are not zero where x is."""
    return F.softplus(x).sum(0), F.softplus(x).sum(-1)


def norm_backward(x, weight, dy, rstd):
    u, g = x * rstd[:, None], dy * weight.to(rstd.dtype)
    dx = rstd[:, None] * (g - u * (g * u).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy * u).sum(0).to(weight.dtype), dy.float().sum(0, keepdim=True)


def meta(*shapes):
    return [torch.empty(shape, device="meta") for shape in shapes]


def test_sums_both_ways_read_the_input_once_and_are_right_for_all_rows(tmp_path):
    """The last program has fewer rows than its step of four, in the first; Inductor itself counts those missing."""
    given = {
        "columns": draw([((16387, 333),), ((5, 33),)]),
        "norm": draw([((4097, 1285), (1285,), (4097, 1285), (4097,))]),
    }
    given["norm"] = [(*(one.bfloat16() for one in case[:3]), case[3]) for case in given["norm"]]
    references = {"columns": both_sums, "norm": norm_backward}
    texts = {name: compiled_function(references[name], cases, name=name) for name, cases in given.items()}
    for name, results in results_of(tmp_path, texts, given).items():
        first = texts[name][texts[name].index("def run") :].split("\n\n")[0]
        assert len(re.findall(r"^ {8}.*\bx,", first, re.M)) == 1, "one launch takes the input"
        assert f"parts = torch.empty(({2 if name == 'norm' else 1}, triton.cdiv(n0, " in first
        for inputs, mine in zip(given[name], results, strict=True):
            for got, right in zip(mine, references[name](*inputs), strict=True):
                loose = 0.02 if right.dtype == torch.bfloat16 else 5e-6
                torch.testing.assert_close(got, right, rtol=loose, atol=loose * float(right.abs().max()))
    assert "XBLOCK = 4" in texts["columns"] and "RSPLIT_SIZE = 16" in texts["columns"]
    assert "if x.shape[0] * x.shape[1] >= 5242880:" in texts["columns"], "small ones are for another branch"


def test_sums_that_one_kernel_would_round_are_left_to_two():
    for reference in (
        lambda x: ((x > 0).sum(0), (x > 0).sum(-1)),
        lambda x: (x.double().sum(0), x.double().sum(-1)),
        lambda x: (x.prod(0), x.prod(-1)),
    ):
        text = compiled_function(reference, [meta((8192, 2048))])
        assert "parts" not in text and text.count("@triton.jit") > 1
    text = compiled_function(lambda x: (x.amax(0), x.sum(-1)), [meta((8192, 2048)), meta((5, 33))])
    assert "def run_1" not in text, "where no size would let one kernel do, none is asked for"


def test_sums_both_ways_in_the_form_of_pytorch_2_11(monkeypatch):
    """It writes no shape: where a result has two dimensions, it has the wrong one."""
    made = module.generate

    def older(*given):
        traced, text = made(*given)
        return traced, re.sub(r"(\.sum\(dim=0\))\.view\(\[[^]]*\]\)", r"\1", text)

    monkeypatch.setattr(module, "generate", older)
    text = compiled_function(both_sums, [meta((8192, 2048))])
    assert "buf1 = torch.empty((n1,), " in text and "sum_parts_kernel[" in text
    assert "parts" not in compiled_function(lambda x: (x.sum(0, keepdim=True), x.sum(-1)), [meta((8192, 2048))])


def test_what_is_read_once_leaves_the_cache_first():
    def written(reference, *shapes):
        return compiled_function(reference, [[torch.empty(shape, device="meta") for shape in shapes]])

    assert "evict_first" in (text := written(lambda x: x.sum(0), (8192, 2048))) and "evict_last" not in text
    text = written(lambda x, shared: (x + shared).sum(0), (8192, 2048), (8192, 1))
    assert text.count("evict_last") == 1, "what all columns share stays"


@pytest.mark.parametrize("size", ["ks1", "tl.cast(ks1, tl.int32)"])
def test_rows_in_parts_are_checked_only_where_the_last_part_is_shorter(size):
    """PyTorch 2.13 writes a cast, 2.11 none."""
    check = f"row = xindex * ((63 + ks1) // 64)\n    rows = {size}\n    inside = row < rows"
    text = OLDER.replace("ynumel", "ks1").replace("tl.device_assert", f"{check}\n    tl.device_assert")
    kernel = clean(read(text.replace("tmp2, None)", "tmp2, inside)")).kernels["triton_red_fused_sum_0"], [])
    assert "inside = (row < rows) | ((xnumel - 1) * ((63 + ks1) // 64) < ks1)" in kernel.text


def test_sizes_in_rows_that_are_summed_in_parts():
    """Columns of a normalised tensor: each part of a column divides by the length of a row."""

    def column_sums(x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) / x.shape[-1])).sum(0)

    text = compiled_function(column_sums, [[torch.empty(m, n, device="meta")] for m, n in ((70, 1000), (2048, 2048))])
    assert "broadcast_to(ks" not in text


def test_libraries_are_left_only_where_they_are_allowed():
    matrix = [[torch.empty(64, 32, device="meta"), torch.empty(32, 48, device="meta")]]
    text = compiled_function(lambda x, y: torch.relu(x @ y), matrix, allow_aten=True, templates=False)
    assert "torch.ops.aten.mm.out(x, y, out=buf0)" in text and text.count("@triton.jit") == 1
    for precision in ("ieee", "tf32"):
        text = compiled_function(lambda x, y: x @ y, matrix, precision=precision)
        assert f"input_precision='{precision}'" in text and "TF32" not in text
    pictures = [[torch.empty(*shape, device="meta") for shape in ((2, 3, side, side), (4, 3, 3, 3))] for side in (8, 9)]
    text = compiled_function(F.conv2d, pictures, allow_aten=True, templates=False)
    assert "torch.empty_strided((4, 3, 3, 3), (27, 1, 9, 3)" in text  # channels last, as where sizes are numbers
    with pytest.raises(LoweringError, match=r"leaves aten\.sort\.stable to a library.*ALLOW"):
        compiled_function(lambda x: x.sort(-1)[0], [[torch.empty(5, 300, device="meta")]])


def test_outputs_have_the_strides_of_the_reference():
    """Inductor pads long rows of odd length where nobody says that the caller sees them."""
    shapes = [[torch.empty(64, 4099, device="meta")]]
    text = compiled_function(lambda x: x / x.abs().mean(1, keepdim=True), shapes, exact=True)
    assert "torch.empty((64, 4099)" in text and "empty_strided" not in text


def test_no_attention_is_left_to_a_cpu():
    """References are traced on a CPU, where a module's attention is an operation that a GPU lacks."""

    def attend(x, w, out):
        options = {"need_weights": False}
        return F.multi_head_attention_forward(x, x, x, 8, 2, w, None, None, None, False, 0.0, out, None, **options)[0]

    shapes = [torch.empty(*shape, device="meta") for shape in ((5, 3, 8), (24, 8), (8, 8))]
    text = compiled_function(attend, [shapes], allow_aten=True, templates=False)
    assert {name.split(".")[0] for name in left_to_torch(Source(text))} == {"mm", "bmm"}


def test_sums_of_products_need_no_product():
    matrix = [[torch.empty(64, 32, device="meta"), torch.empty(32, 48, device="meta")]]
    texts = [compiled_function(lambda x, y: (x @ y).sum(1), matrix, simplify=simplify) for simplify in (False, True)]
    assert ["tl.dot" in text for text in texts] == [True, False]


def test_branches_that_read_the_same_are_one():
    def reference(x):
        assert x.shape[0] % 2 == 0 or x.shape[0] > 2  # an assumption of the trace; nothing depends on it
        return x + (2 if x.shape[1] % 3 == 0 else 1)

    cases = [[torch.empty(shape, device="meta")] for shape in [(5, 33), (6, 33), (5, 34), (6, 34)]]
    for write in (compiled_function, lower_function):
        text = write(reference, cases)
        names = {"run_0": lambda x: 0, "run_1": lambda x: 1}  # instead of those that launch kernels
        exec(text[text.index("def run(x):") :], names)
        taken = [names["run"](*case) for case in cases]
        assert taken[0] == taken[1] != taken[2] == taken[3] and "def run_2" not in text


def test_the_stand_in_never_starts_the_cuda_runtime(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: "cuda")
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("the CUDA runtime was started"))
    with stand_in():
        fake_tensor.init_gpu_context(torch.device("cuda", 0))
        with FakeTensorMode():
            made = torch.empty(4, device="cuda") + torch.tensor(3.0, device="cuda")
    assert made.device.type == "cuda"
    assert not torch.cuda.is_initialized()


TASK = """
import torch

CASES = {{"check": [{{"n": 20}}], "search": [{{"n": 4096}}], "confirm": [{{"n": 2048}}]}}
ALLOW = "{allow}"

def inputs(case, generator, device):
    return (torch.randn(8, case["n"], generator=generator, device=device),)

def reference(x):
    print("said by the task")
    return {result}
"""


def task_of(tmp_path, result, allow="kernels"):
    path = tmp_path / "task.py"
    path.write_text(TASK.format(result=result, allow=allow))
    return load(path)


def test_a_task_gets_them_where_lowering_knows_less(tmp_path):
    plain = task_of(tmp_path, "torch.relu(x)")
    assert first_of(plain).origin == "lowered"
    asked = first_of(plain, "compiled")
    assert asked.origin == "compiled" and "as torch.compile's back end generates them" in asked.source.text
    sample = "torch.nn.functional.grid_sample(x[None, None], torch.tanh(x[None, :, None, :2]), align_corners=False)"
    found = first_of(task_of(tmp_path, sample, "mixed"))
    assert found.origin == "compiled" and not left_to_torch(found.source)


def test_what_neither_knows_is_one_sentence_each(tmp_path):
    with pytest.raises(LoweringError, match=r"linalg_qr.*ALLOW = .mixed.*torch\.compile has none either: .*linalg_qr"):
        first_of(task_of(tmp_path, "torch.linalg.qr(x)[1]"))


def test_a_reference_that_raises_ends_nothing(tmp_path):
    with pytest.raises(LoweringError, match="on purpose"):
        compiled(task_of(tmp_path, "int('on purpose')"))
    assert compiled(task_of(tmp_path, "x + 1")).text  # the same process goes on


KNOWN = """
import sys
from evo_kernel.tasks.compiled import child
from evo_kernel.tasks.loading import load
child._child_text = None
print(child.compiled(load(sys.argv[1])).text)
"""


def test_the_next_command_finds_the_kernels_while_reference_and_its_helpers_stay(tmp_path):
    """The first one writes those of a pooling, from a fresh process."""

    def ended(*arguments: object) -> subprocess.CompletedProcess:
        return subprocess.run(script(*arguments), capture_output=True, text=True, timeout=300, check=False)

    helper, path = tmp_path / "helper.py", tmp_path / "task.py"
    helper.write_text("import torch\n\ndef f(x): return torch.nn.functional.max_pool2d(x[None], 3, 2, 1)")
    path.write_text("from helper import f\n" + TASK.format(result="f(x)", allow="kernels"))
    command = "from evo_kernel.cli.main import main; main()"
    shown = ended("-c", command, "tasks", "show", path, "--seed", "--first", "compiled")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "as torch.compile's back end generates them" in shown.stdout
    again = ended("-c", KNOWN, path)
    assert again.returncode == 0 and again.stdout.strip() and again.stdout.strip() in shown.stdout, again.stderr
    helper.write_text("def f(x): return x * 3")
    assert "NoneType" in ended("-c", KNOWN, path).stderr, "it is asked again: what the reference imports has changed"


REFUSED = {
    "x + torch.rand_like(x)": r"draws random numbers.*pass them as an input",
    "torch.nn.functional.dropout(x, 0.5)": r"draws random numbers.*pass them as an input",
    "x.sum(-1)[:2] * torch.tensor([1.0] * 16, device=x.device)[:2]": r"holds a tensor of shape \[16\].*inputs",
    "x * x.sum().item()": r"depends on tensor values.*x\.sum\(\)",
    "x if x.sum() > 0 else -x": r"depends on tensor values.*torch\.where",
    "x @ x": r"reference itself fails for inputs of \[8, \d+\] \(RuntimeError: .*\[8, \d+\]",
}


@pytest.mark.parametrize("result", REFUSED)
def test_what_cannot_be_is_said_with_the_way_out(tmp_path, result):
    with pytest.raises(LoweringError, match=REFUSED[result]) as refused:
        compiled(task_of(tmp_path, result))
    assert "Guard" not in str(refused.value) and "LoweringException" not in str(refused.value)


def test_a_part_on_the_cpu_is_said_to_come_from_constants():
    with pytest.raises(LoweringError, match=r"CPU: what follows from tensors that are no inputs.*Make them inputs"):
        read(OLDER.replace("async_compile.triton", "async_compile.cpp_pybinding"))


def test_small_constants_of_a_module_are_literals(tmp_path):
    text = compiled(task_of(tmp_path, "x[:, :2] * torch.tensor([1.25, 2.75])")).text
    assert "1.25" in text and "2.75" in text and "torch.tensor" not in text


OLDER = """
triton_red_fused_sum_0 = async_compile.triton('triton_red_fused_sum_0', '''
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics

@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    tmp0 = arg0_0 + arg1_0
    return tmp0

@triton_heuristics.reduction(
    size_hints={'x': 1024, 'r0_': 4096},
    reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={'device': DeviceProperties(type='cuda', index=0)},
    inductor_meta={'grid_type': 'Grid2DWithYZOverflow', 'autotune_hints': set(), 'no_x_dim': False}
)
@triton.jit
def triton_red_fused_sum_0(in_ptr0, out_ptr0, xnumel, ynumel, r0_numel, XBLOCK : tl.constexpr, YBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    rnumel = r0_numel
    xoffset = tl.program_id(0) * XBLOCK
    tl.device_assert((0 <= xoffset), "index out of bounds")
    tmp1 = triton_helpers.max2(tl.load(in_ptr0 + (xoffset)), 1)[:, None]
    tmp2 = libdevice.tanh(tl_math.abs(tmp1))
    tl.store(out_ptr0 + (xoffset), tmp2, None)
''', device_str='cuda')

class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            triton_red_fused_sum_0.run(arg1_1, stream=stream0)
        return (arg1_1, )
"""


def test_the_form_of_other_versions_of_pytorch_is_read_too():
    found = read(OLDER)
    raw = found.kernels["triton_red_fused_sum_0"]
    assert (raw.kind, raw.hint, raw.size_hints) == ("reduction", "INNER", {"x": 1024, "r0_": 4096})
    assert [ast.unparse(node).split("(")[0] for node in found.host[2:4]] == [
        "torch.cuda.set_device", "triton_red_fused_sum_0.run",
    ]  # fmt: skip
    kernel = clean(raw, [])
    assert "device_assert" not in kernel.text and "rnumel" not in kernel.text.partition("\n")[2].replace("r0_numel", "")
    assert "tl.extra.cuda.libdevice.tanh(tl.abs(tmp1))" in kernel.text
    assert kernel.grid(("x", "y", "a", "b", "c"), ()) == (
        "(triton.cdiv(a, {XBLOCK}), min(triton.cdiv(b, {YBLOCK}), 65535), triton.cdiv(triton.cdiv(b, {YBLOCK}), 65535))"
    )


def test_what_is_said_twice_is_said_once():
    body = (
        "a = i.to(tl.int64)\nb = a.to(tl.int64)\nc = b.to(tl.int64)\nd = b.to(tl.int32)\n"
        "for k in tl.range(0, n):\n    e = e.to(tl.int64)\n    f = e.to(tl.int64)\nx = tl.arange(0, 4)[:]\n"
        "e = tl.cast(n, tl.int64)\ntl.store(p + x + x[None, :], b + c + d + f)"
    )
    lines = ast.unparse(ast.Module(used(tidied(ast.parse(body).body)), [])).splitlines()
    assert lines[:2] == ["a = i.to(tl.int64)", "d = a.to(tl.int32)"]
    assert "    f = e.to(tl.int64)" in lines  # e has two values, of which one may be anything
    assert lines[-3:] == [
        "x = tl.arange(0, 4)",
        "e = tl.cast(n, tl.int64)",
        "tl.store(p + x + x[None, :], a + a + d + f)",
    ]


def test_an_unknown_helper_is_named():
    raw = read(OLDER.replace("max2", "sort_with_index")).kernels["triton_red_fused_sum_0"]
    with pytest.raises(LoweringError, match="sort_with_index, which has no form of its own yet"):
        clean(raw, [])
