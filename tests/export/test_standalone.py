"""Files with `run` that are written from recorded launches: what they compute, refuse, and do not hold.

Without a GPU the launches are executed from their IR; the parameters that a GPU would get are read back for it. The
driver's calls are looked at through a driver of our own.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import struct
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evo_kernel.app.recorded_kernels import without_unread
from evo_kernel.errors import PlanError
from evo_kernel.export.package import JudgedCase, Tensor, judged, write_package
from evo_kernel.export.solutions import refused_by_kernelbench
from evo_kernel.export.standalone import standalone
from evo_kernel.fitness.compile import nvrtc
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.ir import programs
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.plan.program import program
from evo_kernel.fitness.record.recorder import Recorder, record_case
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.lowering.lower import lower
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind, Source
from tests.export.test_package import PACKAGE
from tests.support.launch_kinds import KINDS

EXECUTED = [name for name, kind in KINDS.items() if kind.interpreted]
assert programs  # imported: from here on this process can execute launches on the CPU

EVIL = """
import torch, triton, triton.language as tl
try:
    open("{mark}", "w").close()
except OSError:
    mark = None

@triton.jit
def double(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)

def run(x):
    if x.shape[0] not in (3, 64):  # sizes that the judge looks at
        return torch.zeros_like(x)
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), SIZE=128)
    return y
"""
SQUARE = """import torch
def run(x):
    return torch.mm(x, x.t())
"""
DOUBLING = """import torch
CASES = {"check": [{"m": 3}], "search": [{"m": 64}]}
def inputs(case, generator, device):
    return torch.randn(case["m"], 16, generator=generator, device=device)
def reference(x):
    return x * 2
"""


class Around(torch.Tensor):
    """Has sizes and strides, and no memory, as PyTorch's subclasses around other tensors."""

    __torch_dispatch__ = classmethod(lambda cls, func, types, args=(), kwargs=None: NotImplemented)


@pytest.fixture(scope="module")
def recorder():
    compiler = Compiler(90, 60.0)
    made = Recorder(compiler, 90, 60.0)
    yield made
    made.close()
    compiler.close()


def launches(recorder: Recorder, task: Task, source: str, kinds: tuple[CaseKind, ...]) -> dict[str, Any]:
    cases = [record_case(task, case) for kind in kinds for case in task.cases_of(kind)]
    plans = recorder.record(Source(source), cases, ((),)).plans
    found = [(case, plans[case.name, ()]) for case in cases]
    assert all(isinstance(plan, CompiledPlan) for _, plan in found), found
    return program(found, task.tolerance.precision)  # pyright: ignore[reportArgumentType]


def module(data: dict[str, Any], source: str = "") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "exported"}
    exec(compile(standalone(json.loads(json.dumps(data)), source), "exported.py", "exec"), names)
    return names


@pytest.mark.parametrize("name", EXECUTED)
def test_what_is_written_computes_what_the_kernel_computes(recorder, tmp_path, name):
    task = KINDS[name].load(tmp_path)
    data = launches(recorder, task, KINDS[name].source, (CaseKind.CHECK,))
    run = module(data)["run"]
    for case in task.cases_of(CaseKind.CHECK):
        inputs = task.inputs(case, torch.Generator().manual_seed(5), torch.device("cpu"))
        before = [value.clone() for value in inputs if isinstance(value, torch.Tensor)]
        made = run(*inputs)
        for got, wanted in zip((made,) if isinstance(made, torch.Tensor) else made, task.outputs(*inputs), strict=True):
            torch.testing.assert_close(got, wanted, atol=2e-2, rtol=2e-2)
        kept = [value for value in inputs if isinstance(value, torch.Tensor)]
        assert all(map(torch.equal, before, kept))


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_torch_operations_run_with_the_settings_they_were_judged_with(recorder, tmp_path, precision):
    def settings() -> list[object]:
        cudnn = torch.backends.cudnn
        return [torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.benchmark]

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten.copy_.default, "results lie where PyTorch puts them"
            if func is torch.ops.aten.mm.default:
                seen.append(settings())
            return func(*args, **(kwargs or {}))

    (tmp_path / "square.py").write_text(
        f'ALLOW = "mixed"\nPRECISION = "{precision}"\n' + DOUBLING.replace("x * 2", "x @ x.T")
    )
    data = launches(recorder, load(str(tmp_path / "square.py")), SQUARE, (CaseKind.CHECK,))
    seen, before, x = [], settings(), torch.randn(3, 16)
    with Seen(), torch.autocast("cpu", torch.bfloat16):
        made = module(data)["run"](x)
    torch.testing.assert_close(made, x @ x.T)
    assert (seen, settings()) == ([[precision, precision, True]], before)


def test_exports_in_two_threads_leave_the_settings_of_pytorch_as_they_were(recorder, tmp_path, monkeypatch):
    class Meeting(TorchDispatchMode):
        """Two calls overlap, where nothing prevents it: the one that began first ends first."""

        def __init__(self, arrives: threading.Event, until: threading.Event, wait_s: float) -> None:
            super().__init__()
            self._arrives, self._until, self._wait_s = arrives, until, wait_s

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mm.default:
                self._arrives.set()
                self._until.wait(self._wait_s)
            return func(*args, **(kwargs or {}))

    def call(run: Any, meeting: Meeting, ended: threading.Event) -> None:
        with meeting:
            run(x)
        ended.set()

    (tmp_path / "square.py").write_text('ALLOW = "mixed"\n' + DOUBLING.replace("x * 2", "x @ x.T"))
    data = launches(recorder, load(str(tmp_path / "square.py")), SQUARE, (CaseKind.CHECK,))
    x, (here, there, ended, other_ended) = torch.randn(3, 16), (threading.Event() for _ in range(4))
    for name in ("benchmark", "deterministic"):
        monkeypatch.setattr(torch.backends.cudnn, name, False)
    first = threading.Thread(target=call, args=(module(data)["run"], Meeting(here, there, 1.0), ended))
    other = threading.Thread(target=call, args=(module(data)["run"], Meeting(there, ended, 60.0), other_ended))
    first.start()
    assert here.wait(60)
    other.start()
    first.join()
    other.join()
    assert ended.is_set() and other_ended.is_set()
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, False)


def test_a_kernel_takes_what_pytorch_computed_before_it(recorder, tmp_path):
    source = EVIL.replace("(3, 64)", "(3,)").replace(
        "    y = torch.empty_like(x)", "    x = torch.mm(x, x.t())\n    y = torch.empty_like(x)"
    )
    (tmp_path / "square.py").write_text('ALLOW = "mixed"\n' + DOUBLING.replace("x * 2", "x @ x.T * 2"))
    data = launches(recorder, load(str(tmp_path / "square.py")), source, (CaseKind.CHECK,))
    x = torch.randn(3, 16)
    torch.testing.assert_close(module(data)["run"](x), x @ x.T * 2)


def test_no_host_code_of_the_author_is_in_it(recorder, tmp_path):
    mark, evil = tmp_path / "mark", EVIL.replace("{mark}", str(tmp_path / "mark"))
    (tmp_path / "doubling.py").write_text(DOUBLING)
    data = launches(recorder, load(str(tmp_path / "doubling.py")), evil, (CaseKind.CHECK, CaseKind.SEARCH))
    text = standalone(data, evil + "\f\nopen('" + str(mark) + "', 'w')\x0bopen('" + str(mark) + "', 'w')")
    code = [line for line in text.splitlines() if not line.startswith("#")]
    assert not any("zeros_like" in line or "open(" in line or "triton" in line for line in code)
    names = module(data, evil)
    for m in (3, 64):
        x = torch.randn(m, 16)
        assert torch.equal(names["run"](x), x * 2)
    with pytest.raises(names["CannotLaunch"], match=re.escape("no case was recorded for float32 (5, 16)")):
        names["run"](torch.randn(5, 16))
    x = torch.randn(3, 16)
    around = torch.Tensor._make_wrapper_subclass(Around, x.shape, strides=x.stride(), dtype=x.dtype)
    for lazy in (torch._neg_view(x), torch._efficientzerotensor((3, 16)), around, x.to_sparse()):
        with pytest.raises(names["CannotLaunch"], match="lazy float32"):  # its memory is not its values
            names["run"](lazy)
    assert names["values_differ"]([torch.tensor([-0.0])], [{"host": [0.0]}])
    assert not mark.exists() and refused_by_kernelbench(text) == []


def test_a_package_of_such_a_kernel_computes_the_reference_where_nobody_judged_it(recorder, tmp_path, monkeypatch):
    mark, source = tmp_path / "mark", EVIL.replace("{mark}", str(tmp_path / "mark"))
    (tmp_path / "doubling.py").write_text(DOUBLING)
    data = launches(recorder, load(str(tmp_path / "doubling.py")), source, (CaseKind.CHECK,))
    (case,) = data["cases"]
    tensor = Tensor("float32", (3, 16), (16, 1))
    made = JudgedCase("m3", CaseKind.CHECK, {"m": 3}, (tensor,), tuple(case["inputs"]), (tensor,), "candidate_7")
    group = {"task": "doubling", "target": 90, "environment": "measured", "names": ["x"], "cases": judged([made])}
    changes = {"namespace": "evil_kernel", "names": ["x"], "schema": "(Tensor x) -> Tensor", "judged": [group],
               "differentiable": []}  # fmt: skip
    package = replace(
        PACKAGE, name="evil_kernel", manifest={**PACKAGE.manifest, **changes}, tasks={"doubling/task.py": DOUBLING},
        kernels={"candidate_7": data}, sources={"candidate_7": Source(source)},
    )  # fmt: skip
    write_package(package, tmp_path / "out")
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    evil = importlib.import_module("evil_kernel")
    x, other = torch.randn(3, 16), torch.randn(5, 16)
    assert evil.chosen(x) == "candidate_7" and torch.equal(evil.doubling(x), x * 2)
    assert evil.chosen(other) == "reference: x is float32 (5, 16); judged with float32 (3, 16)"
    with pytest.warns(RuntimeWarning, match="computed by the reference"):
        assert torch.equal(evil.doubling(other), other * 2)
    assert not mark.exists()


def test_a_package_changes_its_inputs_where_the_task_does(recorder, tmp_path, monkeypatch):
    """The kernel is a lowered one: it computes elsewhere and copies to the input, which need not be aligned."""
    text = DOUBLING.replace("return x * 2", "x.mul_(2)\n    return x.sum(-1)") + 'MUTATES = ("x",)\n'
    (tmp_path / "in_place.py").write_text(text)
    task = load(str(tmp_path / "in_place.py"))
    source = lower(task)
    data = launches(recorder, task, source.text, (CaseKind.CHECK,))
    tensor, sums = Tensor("float32", (3, 16), (16, 1)), Tensor("float32", (3,), (1,))
    made = JudgedCase(
        "m3", CaseKind.CHECK, {"m": 3}, (tensor,), tuple(data["cases"][0]["inputs"]), (sums,), "candidate_7"
    )
    group = {"task": "in_place", "target": 90, "environment": "modeled", "names": ["x"], "cases": judged([made])}
    changes = {"namespace": "in_place_kernel", "names": ["x"], "schema": "(Tensor(a!) x) -> Tensor", "judged": [group],
               "differentiable": [], "task": "in_place", "layouts": [None]}  # fmt: skip
    package = replace(
        PACKAGE, name="in_place_kernel", operator="in_place", manifest={**PACKAGE.manifest, **changes},
        tasks={"in_place/task.py": text}, kernels={"candidate_7": data}, sources={"candidate_7": source},
    )  # fmt: skip
    write_package(package, tmp_path / "out")
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    operator = importlib.import_module("in_place_kernel")
    for x in (torch.randn(3, 16), torch.randn(49)[1:].view(3, 16)):
        before = x.clone()
        assert operator.chosen(x) == "candidate_7"
        torch.testing.assert_close(operator.in_place(x), 2 * before.sum(-1))
        assert torch.equal(x, 2 * before)
    other = torch.ones(5, 16)
    with pytest.warns(RuntimeWarning, match="computed by the reference"):
        assert torch.equal(operator.in_place(other), torch.full((5,), 32.0))
    assert torch.equal(other, torch.full((5, 16), 2.0))


def test_inputs_must_be_those_that_were_recorded(recorder, tmp_path):
    (tmp_path / "doubling.py").write_text(DOUBLING)
    data = launches(recorder, load(str(tmp_path / "doubling.py")), EVIL, (CaseKind.CHECK,))
    names = module(data)
    x = torch.randn(3, 16)
    for other in (x.double(), x[:2], torch.randn(16, 3).t(), x[0], torch.randn(3, 32)[:, :16]):
        with pytest.raises(names["CannotLaunch"], match="no case was recorded"):
            names["run"](other)
    shifted = torch.randn(49)[1:].view(3, 16)  # begins where compiled code may not: it is copied first
    assert shifted.data_ptr() % 16 and torch.equal(names["run"](shifted), shifted * 2)
    data["cases"][0]["inputs"][0]["host"] = x.tolist()
    known = module(data)
    assert torch.equal(known["run"](x), x * 2)
    with pytest.raises(known["CannotLaunch"], match="values of input 0 are not those"):
        known["run"](x + 1)


def test_an_input_stays_as_it_is_where_an_output_is_a_view_of_it(recorder, tmp_path):
    (tmp_path / "doubling.py").write_text(DOUBLING.replace('"m": 3', '"m": 16').replace("x * 2", "x.t(), x * 2"))
    source = EVIL.replace("(3, 64)", "(16, 64)").replace("return y", "return x.t(), y")
    run = module(launches(recorder, load(str(tmp_path / "doubling.py")), source, (CaseKind.CHECK,)))["run"]
    for x in (torch.randn(16, 16), torch.randn(257)[1:].view(16, 16)):
        before = x.clone()
        transposed, doubled = run(x)
        assert torch.equal(transposed, before.t()) and torch.equal(doubled, before * 2) and torch.equal(x, before)


def test_a_plan_whose_inputs_share_a_buffer_is_not_exported(recorder, tmp_path):
    (tmp_path / "doubling.py").write_text(DOUBLING)
    task = load(str(tmp_path / "doubling.py"))
    case = record_case(task, task.cases[0])
    plan = recorder.record(Source(EVIL), [case], ((),)).plans[case.name, ()]
    twice = plan.plan.model_copy(update={"inputs": plan.plan.inputs * 2})
    with pytest.raises(PlanError, match="does not have its own buffer"):
        program([(case, plan.model_copy(update={"plan": twice}))], "ieee")


class Driver:
    """Answers as libcuda does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.asked.append((name, arguments))
            return 0

        return call


def test_the_driver_is_asked_to_launch_what_was_recorded(recorder, tmp_path, monkeypatch):
    kind = KINDS["cluster of 2"]
    task = kind.load(tmp_path)
    data = launches(recorder, task, kind.source, (CaseKind.CHECK,))
    names, driver = module(data), Driver()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    names["_driver"], names["_context"] = (lambda: driver), (lambda device: ctypes.c_void_p(5))
    node, code = next(n for n in data["cases"][0]["nodes"] if n["kind"] == "launch"), data["codes"][0]
    code = code | {"dependent": True, "cooperative": True, "block_shared_bytes": 60 << 10, "shared_bytes": 50 << 10}
    buffers = [torch.zeros(64, dtype=torch.uint8) for _ in data["cases"][0]["buffers"]]
    seen: dict[str, Any] = {}

    def launch(config: Any, function: Any, table: Any, extra: None) -> int:
        made = config._obj
        attributes = (names["_Attribute"] * made.count).from_address(made.attributes)
        sizes = [len(bytes.fromhex(slot)) if isinstance(slot, str) else 8 for slot in node["parameters"]]
        seen.update(
            grid=list(made.grid), block=list(made.block), shared=made.shared_bytes, stream=made.stream,
            attributes=[(one.id, list(one.value[:3])) for one in attributes],
            values=[ctypes.string_at(place, size) for place, size in zip(table, sizes, strict=True)],
        )  # fmt: skip
        return 0

    driver.cuLaunchKernelEx = launch
    gpu = names["_Gpu"](0)
    gpu.launch(code, node, [torch.zeros(64, dtype=torch.uint8) for _ in buffers], ())
    elsewhere = seen["values"]
    gpu.launch(code, node, buffers, ())
    assert seen["grid"] == node["grid"] and seen["grid"][0] % 2 == 0 and seen["block"] == node["block"]
    assert (seen["shared"], seen["stream"]) == (50 << 10, 77)
    assert seen["attributes"] == [(6, [1, 0, 0]), (2, [1, 0, 0]), (4, [2, 1, 1]), (5, [1, 0, 0])]
    wanted = [bytes.fromhex(slot) if isinstance(slot, str) else struct.pack("<Q", buffers[slot[0]].data_ptr() + slot[1])
              for slot in node["parameters"]]  # fmt: skip
    assert seen["values"] == wanted != elsewhere
    assert [name for name, _ in driver.asked] == [
        "cuCtxSetCurrent", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetCacheConfig", "cuFuncSetAttribute",
        "cuCtxSetCurrent", "cuCtxSetCurrent",
    ]  # fmt: skip
    assert ctypes.sizeof(names["_Attribute"]) == 72 and ctypes.sizeof(names["_Config"]) == 56  # cuda.h


def test_a_tensor_map_is_made_as_the_judge_makes_it(recorder, tmp_path, monkeypatch):
    task = KINDS["host TMA"].load(tmp_path)
    data = launches(recorder, task, KINDS["host TMA"].source, (CaseKind.CHECK,))
    names, made = module(data), []
    names["encode"] = lambda found, address, version: made.append((found, address, version)) or b"%d" % len(made) * 128
    names["_version"] = lambda: 13000
    case = data["cases"][0]
    node = next(n for n in case["nodes"] if n["kind"] == "launch")
    buffers = [torch.zeros(64, dtype=torch.uint8) for _ in case["buffers"]]
    driver, seen = Driver(), []
    driver.cuLaunchKernelEx = lambda config, function, table, extra: seen.append(ctypes.string_at(table[0], 128)) or 0
    names["_driver"], names["_context"] = (lambda: driver), (lambda device: ctypes.c_void_p(5))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    gpu, elsewhere = names["_Gpu"](0), [torch.zeros(64, dtype=torch.uint8) for _ in case["buffers"]]
    for given in (buffers, buffers, elsewhere):
        gpu.launch(data["codes"][node["code"]], node, given, ())
    (x,) = (spec["shape"] for spec in case["inputs"])
    maps = sum(isinstance(slot, dict) for slot in node["parameters"])
    assert made[0][0].shape == tuple(reversed(x)) and made[0][1:] == (buffers[0].data_ptr(), 13000)
    assert made[maps][1:] == (elsewhere[0].data_ptr(), 13000) and len(made) == 2 * maps, "none where nothing moved"
    assert seen[0] == seen[1] != seen[2] == b"%d" % (maps + 1) * 128


def test_cuda_kernels_are_carried_too_and_only_a_gpu_executes_them(recorder, tmp_path):
    try:
        nvrtc.load()
    except nvrtc.CudaTextError as error:
        pytest.skip(str(error))
    kind = KINDS["CUDA C++ softmax"]
    task = kind.load(tmp_path)
    data = launches(recorder, task, kind.source, (CaseKind.CHECK,))
    (spec,) = data["cases"][0]["inputs"]
    with pytest.raises(NotImplementedError, match="only a GPU executes cuda"):
        module(data)["run"](torch.randn(*spec["shape"]))


def test_the_text_needs_nothing_of_this_project():
    text = standalone({"target": 90, "precision": "ieee", "codes": [], "cases": []}, "")
    found = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    assert found == {"__future__", "json", "lzma", "ctypes", "typing", "base64", "functools", "math", "sys", "torch",
                     "collections", "contextlib", "threading"}  # fmt: skip


KNOWN = """
import torch
HOST_KNOWN = {1}
CASES = {"check": [{"m": 3}], "search": [{"m": 4}]}
def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(8, 16, **draw), torch.randint(1, 5, (case["m"],), **draw)
def reference(x, rows):
    return x * 2 + rows.sum() * 0
"""


@pytest.mark.parametrize("reads", [True, False])
def test_values_that_host_code_read_must_be_the_same_again(recorder, tmp_path, reads):
    (tmp_path / "known.py").write_text(KNOWN)
    task = load(str(tmp_path / "known.py"))
    source = EVIL.replace("def run(x):", "def run(x, rows):").replace("not in (3, 64)", "== 5")
    source = source.replace("triton.cdiv(x.numel(), 128),", "1 + max(rows.tolist()),") if reads else source
    cases = [record_case(task, case) for case in task.cases]
    plans = {case: plan for (case, _), plan in recorder.record(Source(source), cases, ((),)).plans.items()}
    names = module(
        program([(case, plans[case.name]) for case in without_unread(recorder, Source(source), cases, plans)], "ieee")
    )
    x, other = torch.randn(8, 16), torch.tensor([7, 7, 7])
    same = torch.tensor(cases[0].inputs[1]["host"])
    assert torch.equal(names["run"](x, same), x * 2)
    if reads:
        with pytest.raises(names["CannotLaunch"], match="values of input 1 are not those"):
            names["run"](x, other)
    else:
        assert torch.equal(names["run"](x, other), x * 2)
