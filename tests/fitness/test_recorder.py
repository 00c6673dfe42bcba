"""The recorder with real children: honest kernels become plans, everything else a status and a sentence."""

from __future__ import annotations

import textwrap
import time

import pytest

from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Constant, Fill, Launch, Scalar
from evo_kernel.fitness.record.recorder import Configurations, RecordCase, Recorder, RecordFault, Recording
from evo_kernel.types import Knobs, Source, Status
from tests.integrity import corpus

CASE = RecordCase("m64-n1000", ({"dtype": "float32", "shape": [64, 1000], "strides": [1000, 1]},))
DOUBLE = """
import torch
import triton
import triton.language as tl

BLOCK = 256
SCALE = tl.constexpr(2.0)


@triton.jit
def scaled(value):
    return value * SCALE


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, scaled(tl.load(x_ptr + offsets, mask=mask)), mask=mask)


def run(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK, num_warps=4)
    return y
"""


@pytest.fixture(scope="module")
def compiler():
    made = Compiler(90, 60.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def recorder(compiler):
    made = Recorder(compiler, 90, 5.0)
    made.start()
    yield made
    made.close()


def _plan(recorder: Recorder, text: str, knobs: Knobs = ()) -> CompiledPlan | RecordFault:
    return recorder.record(Source(textwrap.dedent(text)), [CASE], [knobs]).plans[(CASE.name, knobs)]


def test_a_kernel_becomes_a_plan(recorder):
    plan = _plan(recorder, DOUBLE)
    assert isinstance(plan, CompiledPlan)
    (launch,) = plan.plan.launches
    assert launch.grid == (250, 1, 1)
    assert [arg.kind for arg in launch.args] == ["pointer", "pointer", "scalar"]
    assert isinstance(launch.args[2], Scalar) and launch.args[2].value == 64000
    (kernel,), (binary,) = plan.plan.kernels, plan.binaries
    assert kernel.signature == (("x_ptr", "*fp32"), ("y_ptr", "*fp32"), ("n", "i32"))
    assert 'loc("kernel.py":19:' in kernel.code and "/" not in kernel.code  # no folder, and no Python
    assert "arith.constant dense<2.000000e+00>" in binary.ir and "loc(" not in binary.ir
    assert binary.entry.name == "double_kernel" and [p.divisibility for p in binary.entry.parameters] == [16, 16, 16]
    assert plan.plan.outputs[0].shape == (64, 1000)
    assert plan.binaries[0].parameter_bytes[:3] == (8, 8, 4)


def test_the_hash_ignores_names_and_comments_but_not_knobs(recorder):
    plain, renamed = (
        _plan(recorder, DOUBLE),
        DOUBLE.replace("double_kernel", "other_name").replace("def run", "# a comment\n\n\ndef run"),
    )
    same, other = _plan(recorder, renamed), _plan(recorder, DOUBLE, (("BLOCK", 512),))
    assert isinstance(plain, CompiledPlan) and isinstance(same, CompiledPlan) and isinstance(other, CompiledPlan)
    assert plain.hash == same.hash
    assert plain.hash != other.hash
    assert other.plan.launches[0].grid == (125, 1, 1)


def test_known_kernels_are_not_compiled_again(recorder):
    _plan(recorder, DOUBLE)
    began = time.monotonic()
    _plan(recorder, DOUBLE + "\n# the same kernel in another source\n")
    assert time.monotonic() - began < 2.0


def test_fills_views_and_slices(recorder):
    plan = _plan(
        recorder,
        DOUBLE.replace("y = torch.empty_like(x)", "y = torch.zeros(64, 1000, device=x.device).fill_(3.0)")
        .replace("return y", "return y.view(1000, 64), y[1:, ::2], y.view(64, 1000).t_()"),
    )  # fmt: skip
    assert isinstance(plan, CompiledPlan)
    fills = [node for node in plan.plan.nodes if isinstance(node, Fill)]
    assert [fill.value for fill in fills] == [0, 3.0]
    assert plan.plan.outputs[1].shape == (63, 500) and plan.plan.outputs[1].strides == (1000, 2)
    assert plan.plan.outputs[1].offset == 1000
    assert not plan.plan.aten_nodes and plan.plan.outputs[2].strides == (1, 1000)


TUNED = (
    DOUBLE.replace("BLOCK = 256\n", "")
    .replace(
        "@triton.jit\ndef double_kernel",
        "@triton.autotune(configs=[triton.Config({'BLOCK': 128}), triton.Config({'BLOCK': 512}, num_warps=8)], "
        "key=['n'])\n@triton.jit\ndef double_kernel",
    )
    .replace("(triton.cdiv(x.numel(), BLOCK),)", "lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)")
    .replace(", BLOCK=BLOCK, num_warps=4", "")
)


def _grids(recording: Recording) -> list[int]:
    return [plan.plan.launches[0].grid[0] for plan in recording.plans.values() if isinstance(plan, CompiledPlan)]


def test_autotune_configurations_are_knobs(recorder):
    recording = recorder.record(Source(TUNED), [CASE], [(), (("double_kernel.config", 1),)])
    assert recording.fault is None and _grids(recording) == [500, 125]
    texts = (
        "BLOCK: 128, num_warps: 4, num_ctas: 1, num_stages: 3",
        "BLOCK: 512, num_warps: 8, num_ctas: 1, num_stages: 3",
    )
    assert recording.configs == {"double_kernel": Configurations(texts, own=0, pruned={CASE.name: []})}


def test_a_configuration_that_does_not_fit_is_passed_over(recorder):
    strict = TUNED.replace("    offsets =", "    tl.static_assert(BLOCK > 128)\n    offsets =")
    for _ in range(2):  # the second time it is known
        recording = recorder.record(Source(strict), [CASE], [(), (("double_kernel.config", 0),)])
        assert _grids(recording) == [125] and recording.configs["double_kernel"].own == 1
        fault = recording.of((("double_kernel.config", 0),)).fault
        assert fault is not None and fault.misfit == "double_kernel" and "static_assert" in fault.reason
    neither = recorder.record(Source(strict.replace("> 128", "> 512")), [CASE], [()])
    assert neither.fault is not None and "static_assert" in neither.fault.reason


def test_autotuners_of_packages_choose_a_configuration_too(recorder):
    own = (
        TUNED.replace("@triton.autotune(", "@tuned_by_us(")
        .replace(
            "@triton.jit\ndef scaled",
            "class Ours(triton.runtime.Autotuner):\n"
            "    def run(self, *args, **options):\n"
            "        raise RuntimeError('it would time the kernel')\n\n\n"
            "def tuned_by_us(configs, key):\n"
            "    return lambda fn: Ours(fn, fn.arg_names, configs, key, None, None)\n\n\n"
            "@triton.jit\ndef scaled",
        )
        .replace("    return y", "    assert double_kernel.best_config.kwargs['BLOCK'] == 128\n    return y")
    )
    assert _grids(recorder.record(Source(own), [CASE], [()])) == [500]


def test_what_packages_wrap_around_tensors_is_a_pointer(recorder):
    """Triton asks an argument for `dtype` and `data_ptr` only."""
    wrapper = (
        "class Wrapped:\n"
        "    def __init__(self, tensor, at):\n"
        "        self.dtype, self.at = tensor.dtype, at\n\n"
        "    def data_ptr(self):\n"
        "        return self.at\n\n\n"
        "def run(x):"
    )
    wrapped = DOUBLE.replace("def run(x):", wrapper).replace("(x, y, x.numel()", "(Wrapped(x, AT), y, x.numel() - 1000")
    plans = [
        _plan(recorder, text)
        for text in (
            wrapped.replace("AT", "x[1:].data_ptr()"),
            DOUBLE.replace("(x, y, x.numel()", "(x[1:], y, x.numel() - 1000"),
            wrapped.replace("AT", "1 << 60"),
        )
    ]
    assert isinstance(plans[0], CompiledPlan) and isinstance(plans[1], CompiledPlan)
    assert plans[0].hash == plans[1].hash
    assert isinstance(plans[2], RecordFault) and "in no tensor" in plans[2].reason


def test_kernels_that_torch_may_trace_are_launched_as_they_are(recorder):
    traced = DOUBLE.replace("double_kernel[(", "torch.library.wrap_triton(double_kernel)[(")
    plan, wrapped = _plan(recorder, DOUBLE), _plan(recorder, traced)
    assert isinstance(plan, CompiledPlan) and isinstance(wrapped, CompiledPlan)
    assert plan.hash == wrapped.hash


def test_packages_find_a_gpu_where_they_are_imported(recorder):
    plan = _plan(
        recorder,
        "import multiprocessing, subprocess\nimport torch\n"
        "def waits(stream: torch.cuda.Stream | None, event: 'torch.cuda.Event | None' = None): ...\n"
        "class Graph(torch.cuda.CUDAGraph): ...\n"
        "assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream | None)\n"
        "assert 'H200' in subprocess.run(['nvidia-smi'], capture_output=True, text=True).stdout\n"
        "with multiprocessing.Lock(), multiprocessing.RLock(): pass\n"
        "torch.cuda.init(), torch.cuda.manual_seed(3), torch.cuda.memory_allocated(), torch.cuda.nvtx.range_push('a')\n"
        "functions = [one for one in vars(torch.cuda).values() if type(one) is type(waits)]\n"
        "assert len(functions) == len(set(functions))\n"  # torch's compiler has a rule for each
        "assert torch.version.cuda and torch.accelerator.current_accelerator().type == 'cuda'\n"
        "assert torch.cuda.mem_get_info()[0] > 1 << 30 and torch._C._cuda_getCurrentRawStream(0) == 0\n"
        + DOUBLE.replace(
            "    double_kernel[", "    with torch.cuda.stream(torch.cuda.current_stream()):\n      double_kernel["
        ),
    )
    assert isinstance(plan, CompiledPlan), plan
    fault = _plan(recorder, DOUBLE.replace("    double_kernel[", "    torch.cuda.Stream()\n    double_kernel["))
    assert isinstance(fault, RecordFault) and "makes a CUDA stream" in fault.reason


def test_run_reads_what_is_computed_from_values_that_it_knows(recorder):
    inputs = (*CASE.inputs, {"dtype": "int32", "shape": [3], "strides": [1], "host": [4, 7, 5]})
    known = RecordCase("known", inputs)
    counts = DOUBLE.replace(
        "def run(x):", "def run(x, at):\n    assert (at > 0).all() and (at[1:] - at[:-1]).max() == 3"
    )
    plan = recorder.record(Source(counts), [known], [()]).plans[("known", ())]
    assert isinstance(plan, CompiledPlan), plan
    assert len(plan.plan.aten_nodes) == 5  # they are still operations of the plan
    for unknown in ("at.add_(1)", "at = torch.randint_like(at, 9)", "double_kernel[(1,)](at, at, 3, BLOCK=BLOCK)"):
        text = counts.replace("    assert", f"    {unknown}\n    assert")
        fault = recorder.record(Source(text), [known], [()]).plans[("known", ())]
        assert isinstance(fault, RecordFault) and "reads a tensor's values" in fault.reason, fault


def test_a_compiled_kernel_is_launched_again(recorder):
    again = DOUBLE.replace("    double_kernel[", "    compiled = double_kernel[").replace(
        "    return y",
        "    compiled[(3, 1, 1)](x, y, 768, BLOCK)\n    compiled[(2, 1, 1)](x, y, 512)\n    return y",
    )
    plan = _plan(recorder, again)
    assert isinstance(plan, CompiledPlan), plan
    assert [(one.grid[0], one.kernel, len(one.args)) for one in plan.plan.launches] == [
        (250, 0, 3),
        (3, 0, 3),
        (2, 0, 3),
    ]


def test_device_questions_are_answered_for_the_target(recorder):
    plan = _plan(
        recorder,
        DOUBLE.replace(
            "(triton.cdiv(x.numel(), BLOCK),)",
            "(torch.cuda.get_device_properties(x.device).multi_processor_count,"
            " torch.cuda.get_device_capability()[0],"
            " triton.runtime.driver.active.utils.get_device_properties(0)['multiprocessor_count'])",
        ),
    )
    assert isinstance(plan, CompiledPlan), plan
    assert plan.plan.launches[0].grid == (132, 9, 132)


def test_resources_of_a_warmed_up_kernel(recorder):
    plan = _plan(
        recorder,
        DOUBLE.replace(
            "    double_kernel[",
            "    warm = double_kernel.warmup(x, y, 5, BLOCK=BLOCK, num_warps=4, grid=(1,))\n"
            "    warm._init_handles()\n"
            "    assert warm.n_regs > 0 and warm.metadata.shared >= 0\n"
            "    double_kernel[",
        ),
    )
    assert isinstance(plan, CompiledPlan), plan
    assert len(plan.plan.launches) == 1


def test_tuples_functions_and_globals_are_taken_as_triton_takes_them(recorder):
    for file in ("softmax_tuple_argument", "softmax_assumes", "softmax_closure"):
        entry = corpus.read(corpus.HERE / "honest" / f"{file}.py")
        plan = recorder.record(entry.source, [CASE], [()]).plans[(CASE.name, ())]
        assert isinstance(plan, CompiledPlan), plan
        kinds = [kind for _, kind in plan.plan.kernels[0].signature]
        assert kinds[:2] == ["*fp32", "*fp32"] and set(kinds[2:]) == {"i32"}, kinds


def test_what_is_specialised_alike_is_one_kernel(recorder):
    twice = DOUBLE.replace("    return y", "    double_kernel[(1,)](x, y, 16, BLOCK=BLOCK, num_warps=4)\n    return y")
    plan = _plan(recorder, twice)
    assert isinstance(plan, CompiledPlan) and len(plan.plan.kernels) == 1 and len(plan.plan.launches) == 2
    odd = _plan(recorder, twice.replace("y, 16,", "y, 17,"))
    assert isinstance(odd, CompiledPlan) and len(odd.plan.kernels) == 2
    assert odd.binaries[1].entry.parameters[2].divisibility == 1


@pytest.mark.parametrize(
    "name", ["09_global_in_assembly", "09_constant_memory", "60_ir_that_claims_too_much", "17_forges_the_answer"]
)
def test_cheats_that_need_no_execution_to_be_seen(recorder, name):
    entry = corpus.read(corpus.HERE / "cheats" / f"{name}.py")
    fault = recorder.record(entry.source, [CASE], [()]).plans[(CASE.name, ())]
    assert isinstance(fault, RecordFault) and fault.status is Status.REJECTED and entry.says in fault.reason, fault


HOSTILE = {
    "syntax": ("def run(x:\n", Status.BUILD_ERROR, "not valid Python"),
    "no run": ("x = 1\n", Status.BUILD_ERROR, "no function `run`"),
    "run is a number": ("run = 3\n", Status.BUILD_ERROR, "no function `run`"),
    "fork bomb": ("import os\nwhile True: os.fork()\ndef run(x): return x\n", Status.BUILD_ERROR, "not permitted"),
    "100 GB": ("x = bytearray(100 << 30)\ndef run(x): return x\n", Status.BUILD_ERROR, "MemoryError"),
    "network": ("import socket\nsocket.socket()\ndef run(x): return x\n", Status.BUILD_ERROR, "not permitted"),
    "reads files": ("open('/etc/passwd').read()\ndef run(x): return x\n", Status.BUILD_ERROR, "Permission denied"),
    "writes files": ("open('/tmp/x', 'w')\ndef run(x): return x\n", Status.BUILD_ERROR, "OSError"),
    "starts programs": ("import subprocess\nsubprocess.run(['true'])\ndef run(x): return x\n", Status.BUILD_ERROR, "not permitted"),
    "fills the disk": ("f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20))\ndef run(x): return x\n", Status.BUILD_ERROR, "No space left"),
    "exits": ("import os\ndef run(x): os._exit(0)\n", Status.BUILD_ERROR, "ended"),
    "raises SystemExit": ("def run(x): raise SystemExit(3)\n", Status.BUILD_ERROR, "SystemExit"),
    "recursion": ("def run(x): return run(x)\n", Status.BUILD_ERROR, "RecursionError"),
    "reads a value": ("def run(x): return x if x.sum() > 0 else -x\n", Status.REJECTED, "reads a tensor's values"),
    "returns nothing": ("def run(x): return None\n", Status.REJECTED, "must return a tensor"),
    "returns a CPU tensor": ("import torch\ndef run(x): return torch.zeros(3)\n", Status.WRONG, "on cpu"),
    "bad kernel": (DOUBLE.replace("tl.load(x_ptr + offsets", "tl.nonsense(x_ptr + offsets"), Status.BUILD_ERROR, "double_kernel"),
    "reads a global": (DOUBLE.replace("SCALE = tl.constexpr(2.0)", "SCALE = [object()]"), Status.BUILD_ERROR, "SCALE"),
    "names a tool": (DOUBLE.replace("num_warps=4", "ptx_options='-o /tmp/x'"), Status.BUILD_ERROR, "option ptx_options"),
    "names a file": (DOUBLE.replace("num_warps=4", "ir_override='other.ttir'"), Status.BUILD_ERROR, "option ir_override"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sources_end_in_a_sentence(recorder, name):
    text, status, reason = HOSTILE[name]
    fault = _plan(recorder, text)
    assert isinstance(fault, RecordFault)
    assert fault.status is status and reason in fault.reason, fault


def test_an_endless_import_ends_in_a_sentence(compiler):
    hasty = Recorder(compiler, 90, 1.5)
    fault = _plan(hasty, "while True: pass\ndef run(x): return x\n")
    hasty.close()
    assert isinstance(fault, RecordFault)
    assert fault.status is Status.TIMEOUT and "did not finish" in fault.reason, fault


def test_a_gigabyte_of_prints_goes_nowhere(recorder):
    plan = _plan(recorder, "for _ in range(1000): print('a' * 1_000_000)\n" + DOUBLE)
    assert isinstance(plan, CompiledPlan)


def test_the_recorder_goes_on_after_all_that(recorder):
    assert isinstance(_plan(recorder, DOUBLE), CompiledPlan)


def test_launches_carry_no_raw_addresses(recorder):
    fault = _plan(recorder, DOUBLE.replace("(x, y, x.numel(),", "(x, y, y.data_ptr(),"))
    assert isinstance(fault, RecordFault) and "raw address" in fault.reason
    large = DOUBLE.replace("    double_kernel[", "    torch.tensor([1 << 41, 7], device=x.device)\n    double_kernel[")
    assert isinstance(
        _plan(recorder, large), CompiledPlan
    )  # a number that could be an address, but nobody asked for it
    assert Launch.model_fields["args"]  # addresses have no place in a launch at all


def test_torch_imports_no_compiler_unless_it_is_asked_for(recorder):
    def recorded(lines: str):
        return _plan(recorder, DOUBLE.replace("    y =", f"    {lines}\n    y ="))

    loaded = "[name for name in sys.modules if name in ('torch._dynamo.guards', 'torch.distributed.tensor._ops')]"
    plan = recorded(f"import sys; torch.tensor([1, 2]).cuda(); x.view(-1).t(); assert not {loaded}")
    assert isinstance(plan, CompiledPlan), plan
    plan = recorded(
        "from torch._dynamo.source import AttrSource, ConstantSource; import torch.distributed.tensor as distributed\n"
        f"    import sys; assert ConstantSource is not str and distributed.Shard and len({loaded}) == 2"
    )
    assert isinstance(plan, CompiledPlan), plan


@pytest.mark.parametrize("transposed", [False, True])
def test_torchs_convolutions_lie_as_cudnn_writes_them(recorder, transposed):
    last = ".to(memory_format=torch.channels_last)"
    convolve = f"torch.ops.aten.convolution(x.view(1, 4, -1, 2){last}, w, None, [1, 1], [0, 0], [1, 1], {transposed}, [0, 0], 1)"
    plan = _plan(
        recorder, f"import torch\ndef run(x):\n    w = torch.ones(4, 4, 1, 1, device=x.device)\n    return {convolve}\n"
    )
    assert isinstance(plan, CompiledPlan), plan
    assert plan.plan.outputs[0].strides[1] == 1


def test_a_network_of_hundreds_of_weights_is_recorded(recorder):
    case = RecordCase("many", CASE.inputs * 315)
    source = Source(DOUBLE.replace("def run(x):", "def run(x, *weights):"))
    plan = recorder.record(source, (case,), ((),)).plans[("many", ())]
    assert isinstance(plan, CompiledPlan) and len(plan.plan.inputs) == 315, plan


def test_operations_whose_decomposition_copies_into_out_are_recorded(recorder):
    text = DOUBLE.replace(
        "def run(x):\n    y = torch.empty_like(x)\n",
        "def run(x):\n    y = torch.empty_like(x)\n"
        "    z = torch.empty(64, 64, device='cuda')\n"
        "    torch.ops.aten.addmm.out(x[0, :64], x, x.t(), alpha=1, beta=1, out=z)\n",
    ).replace("return y", "return y, z")
    plan = _plan(recorder, text)
    assert isinstance(plan, CompiledPlan), plan
    assert [node.op for node in plan.plan.aten_nodes] == ["aten.addmm.out"]
    assert plan.plan.aten_nodes[0].outputs[0] == plan.plan.outputs[1]


def test_tables_of_addresses_are_relocations(recorder):
    def recorded(lines: str, result: str = "y"):
        text = DOUBLE.replace("    double_kernel[", f"    {lines}\n    double_kernel[")
        return _plan(recorder, text.replace("    return y", f"    return {result}"))

    for lines in (
        "t = torch.tensor([7, x.data_ptr(), y[3:].data_ptr() - 4], device=x.device)",
        "t = torch.zeros(3, dtype=torch.int64, device=x.device); t[0] = 7; t[1] = x.data_ptr()\n"
        "    t[2] = torch.tensor(y[3:].data_ptr() - 4)",
    ):
        compiled = recorded(lines)
        assert isinstance(compiled, CompiledPlan), compiled
        tables = [node for node in compiled.plan.nodes if isinstance(node, Constant)]
        places = {(t.view.offset + r.at, r.target, r.offset) for t in tables for r in t.relocations}
        (x,), (y,) = compiled.plan.inputs, compiled.plan.outputs
        row = y.strides[0] * y.item_bytes
        assert places == {(1, x.buffer, 0), (2, y.buffer, 3 * row - 4)}
        assert not any(int.from_bytes(t.content[8 * r.at :][:8], "little") for t in tables for r in t.relocations)
    table = "t = torch.tensor([x.data_ptr()], device=x.device)"
    for lines, result, reason in (
        ("torch.tensor([x.data_ptr() - 8], device=x.device)", "y", "8 bytes before a tensor"),
        ("torch.full((1,), x.data_ptr() + x.nbytes + 1, device=x.device)", "y", "1 bytes behind a tensor"),
        ("x * x.data_ptr()", "y", "an address (data_ptr) as a number"),
        (table, "y, t", "returned a table of addresses"),
        (f"{table}\n    double_kernel[1,](t, y, 4, BLOCK=4)\n    t = t.clone()", "y", "on the host"),
        (f"{table}\n    double_kernel[1,](t, y, 4, BLOCK=4)\n    t += 8", "y", "on the host"),
    ):
        fault = recorded(lines, result)
        assert isinstance(fault, RecordFault) and reason in fault.reason, fault
