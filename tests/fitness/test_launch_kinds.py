"""Every kind of node: recorded and compiled for sm_90 with no GPU, and judged where the executor of IR can."""

from __future__ import annotations

import base64
import re
import struct
from pathlib import Path

import pytest

from evo_kernel.fitness.compile import nvrtc
from evo_kernel.fitness.compile.compiler import Compiler, cuda_text_fault
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Constant, Copy, Descriptor, Kernel, validated
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.types import CaseKind, Purpose, Source, Status
from tests.support.launch_kinds import CUDA_SHARED, FAILING_ASSERT, HEAD, KINDS, flat


def has_nvrtc() -> bool:
    try:
        nvrtc.load()
    except nvrtc.CudaTextError:
        return False
    return True


DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "plans.md").read_text()
needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason=nvrtc.MISSING)


@pytest.fixture(scope="module")
def compiler():
    made = Compiler(90, 60.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def recorder(compiler):
    made = Recorder(compiler, 90, 60.0)
    yield made
    made.close()


@pytest.fixture
def record(recorder, tmp_path):
    def plan_of(name: str, source: str = "") -> CompiledPlan | RecordFault:
        kind = KINDS[name]
        task = kind.load(tmp_path)
        case = record_case(task, task.cases_of(CaseKind.CHECK)[-1])
        return recorder.record(Source(source or kind.source), (case,), ((),)).plans[(case.name, ())]

    return plan_of


def compiled(plan: CompiledPlan | RecordFault) -> CompiledPlan:
    assert isinstance(plan, CompiledPlan), plan
    assert validated(CompiledPlan, plan.model_dump_json()).hash == plan.hash  # it travels
    return plan


def test_host_descriptors(record):
    plan = compiled(record("host TMA"))
    first, second = plan.plan.launches[0].args
    assert isinstance(first, Descriptor) and isinstance(second, Descriptor)
    assert first.shape == (100, 132) and first.strides == (132, 1) and first.block == (32, 64)
    binary = plan.binaries[0]
    assert len(binary.tensordesc_meta) == 2 and binary.tensordesc_meta[0].elem_size == 4
    # a map of 128 bytes, shape and strides for each, then the two scratch pointers
    assert binary.parameter_bytes == (128, 4, 4, 8, 8) * 2 + (8, 8)
    assert binary.instructions["tma.load"] and binary.instructions["tma.store"]


def test_device_descriptors_say_their_scratch(record):
    binary = compiled(record("device TMA")).binaries[0]
    assert binary.global_scratch_bytes >= 256 and binary.global_scratch_align == 128


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("dependent launches", "dependent", True),
        ("cooperative launch", "cooperative", True),
        ("cluster of 2", "num_ctas", 2),
        ("cluster of 16", "num_ctas", 16),
    ],
)
def test_how_a_kernel_is_launched_is_carried(record, name, field, value):
    plan = compiled(record(name))
    assert {getattr(binary, field) for binary in plan.binaries} == {value}
    plain = compiled(record("cooperative launch", flat("num_warps=4")))
    assert getattr(plain.binaries[0], field) != value and plain.hash != plan.hash


def test_gluon_is_compiled(record):
    plan = compiled(record("Gluon"))
    assert plan.plan.kernels[0].language == "gluon" and plan.binaries[0].registers > 0


def test_a_fault_in_functions_that_functions_call_is_told(record):
    calls = "@gluon.jit\ndef inner(x):\n    return x.reshape([7])\n\n@gluon.jit\ndef outer(x):\n    return inner(x)\n\n"
    source = KINDS["Gluon"].source.replace("@gluon.jit\n", f"{calls}@gluon.jit\n")
    source = source.replace("gl.store(y_ptr + at,", "gl.store(y_ptr + outer(at),")
    fault = record("Gluon", source)
    assert isinstance(fault, RecordFault) and "return x.reshape([7])" in fault.reason


def test_constant_tables(record):
    plan = compiled(record("constant table"))
    tables = [node for node in plan.plan.nodes if isinstance(node, Constant)]
    assert struct.unpack("<4f", tables[-1].content) == (1.0, 2.0, 3.0, 4.0)
    assert plan.plan.aten_nodes == ()
    assert "relocations" not in tables[-1].model_dump_json()  # it would change the hashes of judged plans


def test_tables_of_addresses_travel(record):
    plan = compiled(record("tables of addresses"))
    (x,), (y,) = plan.plan.inputs, plan.plan.outputs
    rows, tables = (node for node in plan.plan.nodes if isinstance(node, Constant))
    assert [one.target for one in rows.relocations[:2]] == [x.buffer, y.buffer]
    assert plan.plan.reached(plan.plan.launches[0]) == {tables.view.buffer, rows.view.buffer, x.buffer, y.buffer}
    assert plan.plan.copied_outputs == ()


TABLES = {
    "torch.tensor([1, 2], dtype=torch.int32).cuda()": struct.pack("<2i", 1, 2),
    "torch.arange(3, device=x.device) * 2": struct.pack("<3q", 0, 2, 4),
    "(torch.arange(3) + 1).to('cuda', torch.int32)": struct.pack("<3i", 1, 2, 3),
    "x.new_tensor([1, 2])": struct.pack("<2f", 1, 2),
    "MODULE_TABLE.cuda()": struct.pack("<2d", 0.5, 1.5),
    "torch.from_numpy(np.arange(2)).to(x.device)": struct.pack("<2q", 0, 1),
    "torch.empty(2, dtype=torch.int64, device='cuda').copy_(torch.tensor([3, 4]))": struct.pack("<2q", 3, 4),
    "torch.tensor([torch.tensor([3, 5]).max().item()] + torch.tensor([7]).tolist()).cuda()": struct.pack("<2q", 5, 7),
}


@pytest.mark.parametrize("text", TABLES)
def test_what_host_code_spells_out_is_a_table(record, text):
    head = "import numpy as np\n" + HEAD + "MODULE_TABLE = torch.tensor([0.5, 1.5], dtype=torch.float64)\n"
    source = KINDS["assertion that holds"].source.replace(HEAD, head)
    source = source.replace("y = torch.empty_like(x)", f"y = torch.empty_like(x)\n    table = {text}")
    plan = compiled(record("assertion that holds", source)).plan
    assert plan.aten_nodes == ()
    assert [n.content for n in plan.nodes if isinstance(n, Constant)][-1] == TABLES[text]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("torch.arange(20000).cuda()", "a table of 160000 bytes"),
        ("x.cpu().cuda()", "reads a tensor's values on the host"),
        ("torch.tensor([float(x[0, 0])]).cuda()", "reads a tensor's values on the host"),
    ],
)
def test_what_is_no_table_is_refused(record, text, reason):
    source = KINDS["copy"].source.replace("z = torch.empty_like(x)", f"z = torch.empty_like(x)\n    table = {text}")
    fault = record("copy", source)
    assert isinstance(fault, RecordFault) and fault.status is Status.REJECTED and reason in fault.reason, fault


def test_a_table_that_a_kernel_was_given_is_known_no_longer(record):
    source = KINDS["constant table"].source.replace("return y", "again = table + 1\n    return y")
    plan = compiled(record("constant table", source)).plan
    assert [node.op for node in plan.aten_nodes] == ["aten.add.Tensor"]


@pytest.mark.parametrize(
    "text", ["x.t().contiguous()", "x.clone()", "x.t().reshape(-1)", "torch.empty_like(x).copy_(x[:1])"]
)
def test_moving_data_is_a_copy(record, text):
    plan = compiled(record("copy", KINDS["copy"].source.replace("x.t().contiguous()", text))).plan
    assert plan.aten_nodes == () and sum(isinstance(node, Copy) for node in plan.nodes) == 1


def test_casts_are_torch_operations(record):
    plan = compiled(record("copy", KINDS["copy"].source.replace("x.t().contiguous()", "x.half()"))).plan
    assert [node.op for node in plan.aten_nodes] == ["aten._to_copy.default"]


def test_an_output_that_is_only_moved_is_named(record):
    source = KINDS["copy"].source.replace("return z", "return x.clone(), z")
    assert compiled(record("copy", source)).plan.copied_outputs == (0,)


@pytest.mark.parametrize(
    ("text", "order", "strides"),
    [
        ("z.t()", (0, 1), (132, 1)),  # as the reference's, by a copy
        ("z.t()", (1, 0), (1, 100)),  # as the reference's
        ("z.t()", None, (1, 100)),  # the task leaves it open
        ("z", (1, 0), (100, 1)),  # row by row is right for any
    ],
)
def test_what_kernels_computed_is_copied_to_the_layout_of_the_reference(record, text, order, strides):
    plan = compiled(record("copy", KINDS["copy"].source.replace("return z", f"return {text}"))).plan
    told = plan.laid_out(lambda: (order,))
    assert told.outputs[0].strides == strides and told.copied_outputs == ()
    assert len(told.nodes) - len(plan.nodes) == (strides != plan.outputs[0].strides)
    assert type(plan).model_validate(told.model_dump()) == told


@needs_nvrtc
def test_cuda_kernels_are_compiled(record):
    plan = compiled(record("CUDA C++ with dynamic shared memory"))
    launch, kernel, binary = plan.plan.launches[0], plan.plan.kernels[0], plan.binaries[0]
    assert (launch.grid, launch.block) == ((64, 1, 1), (64, 4, 1)) and kernel.language == "cuda"
    assert [kind for _, kind in kernel.signature] == ["*fp32", "*fp32", "fp32", "u64"]
    assert binary.num_warps == 8 and binary.shared_bytes == 65536 and binary.parameter_bytes == (8, 8, 4, 8)
    assert binary.instructions["ld.global"] and binary.instructions["barrier"]


CUDA_FAULTS = {
    "by * factors": ("wrong * factors", 'identifier "wrong" is undefined'),
    "<cuda_fp16.h>": ('"/etc/passwd"', "#include"),
    "-DSECOND=1": ("--include-path=/", "option --include-path=/ is not allowed"),
    "const float factors": ("static __device__ volatile float factors", "would keep its value"),
    "const float factors[2]": ("static __constant__ volatile float factors[2]", "would keep its value"),
    "tile[i % 16384] = x[i]": ("tile[i % 16384] = x[i] + *(float*)malloc(4)", "it calls malloc"),
    "(x, y, 2, x.numel())": ("(x, y, 2)", "takes 4 arguments"),
    "[64, (64, 4), 65536]": ("[64, (64, 64), 65536]", "4096 threads"),
    "float by, size_t n": ("float4 by, size_t n", "float4 by"),
    "(x, y, 2, x": ("(x, 1, 2, x", "takes a tensor as `y`, not a int"),
}


@needs_nvrtc
@pytest.mark.parametrize("old", CUDA_FAULTS)
def test_cuda_faults_have_reasons(record, old):
    new, reason = CUDA_FAULTS[old]
    assert old in CUDA_SHARED
    fault = record("CUDA C++ with dynamic shared memory", HEAD + CUDA_SHARED.replace(old, new))
    assert isinstance(fault, RecordFault) and reason in fault.reason, fault
    assert fault.status in (Status.BUILD_ERROR, Status.REJECTED)


def test_without_nvrtc_there_is_a_sentence():
    with pytest.raises(nvrtc.CudaTextError, match="pip install"):
        nvrtc.load(())


@needs_nvrtc
@pytest.mark.parametrize("header", ["cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h", "cstdint", "cmath"])
def test_headers_that_the_documentation_names(compiler, header):
    assert f"<{header}>" in DOCS
    text = f"#include <{header}>\n__global__ void f(float* y) {{ *y = 1; }}"
    kernel = Kernel(name="f", language="cuda", code=text, signature=(("y", "*fp32"),), options=(("num_warps", 1),))
    (binary,) = compiler.compile([kernel])
    assert not isinstance(binary, str), binary


@needs_nvrtc
def test_the_documented_example_is_a_kernel(record):
    (example,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    assert compiled(record("copy", example)).plan.kernels[0].name == "scale"


@needs_nvrtc
def test_two_entry_functions_of_one_text_are_two_kernels(record):
    two = HEAD + (
        "from evo_kernel.cuda import kernel\n"
        'CODE = """extern "C" __global__ void a(float* y) { y[threadIdx.x] = 1; }\n'
        'extern "C" __global__ void b(float* y) { y[threadIdx.x] = 2; }"""\n'
        'def run(x):\n    y = torch.empty_like(x)\n    kernel(CODE, "NAME")[1, 32](y)\n    return y\n'
    )
    plans = [compiled(record("copy", two.replace("NAME", name))) for name in "ab"]
    assert plans[0].hash != plans[1].hash


@pytest.mark.parametrize("line", ['#incl\\\nude "x.h"', '%:include "x.h"', '/* */ #/**/include "x.h"'])
def test_hidden_includes_are_seen(line):
    kernel = Kernel(name="k", language="cuda", code=f"{line}\n", signature=(), options=(("num_warps", 1),))
    assert "#include" in cuda_text_fault(kernel)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.interpreted])
def test_what_the_interpreter_executes_passes(name, tmp_path):
    kind = KINDS[name]
    with open_judge(kind.load(tmp_path), device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        evaluation = judge.evaluate(kind.text, Purpose.PROBE)
    assert evaluation.status is Status.PASSED, evaluation.reason


def test_a_copy_alone_is_no_kernel(tmp_path):
    kind = KINDS["copy"]
    source = Source(kind.source.replace("return z", "return z.clone()"))
    with open_judge(kind.load(tmp_path), device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        evaluation = judge.evaluate(source, Purpose.PROBE)
    assert evaluation.status is Status.REJECTED and "output 0 is a copy" in evaluation.reason, evaluation.reason


@needs_nvrtc
def test_what_only_a_gpu_executes_is_refused_with_a_sentence(tmp_path):
    kind = KINDS["CUDA C++ softmax"]
    with open_judge(kind.load(tmp_path), device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        evaluation = judge.evaluate(kind.text, Purpose.PROBE)
    assert evaluation.status is Status.REJECTED
    assert "cannot be checked without a GPU" in evaluation.reason and "--device cuda" in evaluation.reason


def test_an_assertion_that_fails_is_a_runtime_error(tmp_path):
    task = KINDS["assertion that holds"].load(tmp_path)
    with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        evaluation = judge.evaluate(Source(FAILING_ASSERT), Purpose.PROBE)
    assert evaluation.status is Status.RUNTIME_ERROR and "the input is too large" in evaluation.reason


def test_a_constant_has_the_bytes_of_its_view():
    view = {"buffer": 0, "dtype": "int32", "shape": (2,), "strides": (1,)}
    with pytest.raises(ValueError, match="a table of 4 bytes for 2 elements"):
        Constant.model_validate({"view": view, "data": base64.b64encode(bytes(4)).decode()})
