"""Hand-made plans, as a forged recording or a tampered plan file would bring them: refused, or judged, never obeyed.

Everything here is data that no honest recorder writes. Reading it ends in a PlanError that names the field; what reads
well and is still nonsense ends in a status of the runner, never in an exception of ours.
"""

from __future__ import annotations

import base64
import copy
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evo_kernel.errors import PlanError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, validated
from evo_kernel.fitness.runners.base import Runner
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.types import CaseKind, Measurement, Purpose, Source, Status
from tests.integrity.corpus import HERE, load_task
from tests.integrity.judging import device

HONEST = HERE / "honest" / "softmax_one_pass.py"
CASE = "m5-n127"


TASK, DEADLINE_S = load_task("softmax"), 8.0


@pytest.fixture(scope="module")
def runner() -> Runner:
    return open_runner(TASK, device(), DEADLINE_S)


@pytest.fixture(scope="module")
def judge(runner):
    with PlanJudge(TASK, runner, JudgeSettings(tune_plans=0, deadline_s=DEADLINE_S)) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def plan(judge) -> dict[str, Any]:
    """An honest compiled plan as JSON data."""
    made = judge.plans(Source(HONEST.read_text()), (), [CaseKind.CHECK])[CASE]
    assert isinstance(made, CompiledPlan)
    return json.loads(made.model_dump_json())


def _buffer(size: int) -> dict[str, Any]:
    return {"kind": "scratch", "bytes": size}


def _set(*path: str | int, to: Any) -> Callable[[dict], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return change


def _edit_ir(old: str, new: str) -> Callable[[dict], None]:
    def change(data: Any) -> None:
        text = data["binaries"][0]["ir"]
        assert old in text
        data["binaries"][0]["ir"] = text.replace(old, new)

    return change


def _addresses(*relocations: tuple[int, int, int], buffer: int = 2, dtype: str = "int64", first: int = 0) -> Callable:
    """Adds a table of 16 bytes with addresses (at, target, offset); `first`: the number in its first element."""

    def change(data: Any) -> None:
        words = 16 // (4 if dtype == "int32" else 8)
        view = {"buffer": buffer, "dtype": dtype, "shape": [words], "strides": [1]}
        data["plan"]["buffers"].append(_buffer(16))
        data["plan"]["nodes"].insert(0, {
            "kind": "constant", "view": view, "data": base64.b64encode(struct.pack("<2q", first, 0)).decode(),
            "relocations": [dict(zip(("at", "target", "offset"), one, strict=True)) for one in relocations],
        })  # fmt: skip

    return change


def _copied(data: Any) -> None:
    _addresses((0, 0, 0))(data)
    table = data["plan"]["nodes"][0]["view"]
    data["plan"]["nodes"].append({"kind": "copy", "source": table, "target": {**table, "buffer": 1}})


LAUNCH, KERNEL, VIEW = ("plan", "nodes", 0), ("plan", "kernels", 0), ("plan", "outputs", 0)
REFUSED = {
    "huge grid": (_set(*LAUNCH, "grid", to=[2**31, 1, 1]), "grid"),
    "tall grid": (_set(*LAUNCH, "grid", to=[1, 65536, 1]), "grid"),
    "empty grid": (_set(*LAUNCH, "grid", to=[0, 1, 1]), "grid"),
    "negative grid": (_set(*LAUNCH, "grid", to=[-1, 1, 1]), "grid"),
    "grid of NaN": (_set(*LAUNCH, "grid", to=[float("nan"), 1, 1]), "grid"),
    "grid of a fraction": (_set(*LAUNCH, "grid", to=[1.5, 1, 1]), "grid"),
    "grid of two": (_set(*LAUNCH, "grid", to=[1, 1]), "grid"),
    "a kernel that is not there": (_set(*LAUNCH, "kernel", to=7), "kernel 7 of 1"),
    "a negative kernel": (_set(*LAUNCH, "kernel", to=-1), "kernel"),
    "absurd shared memory": (_set("binaries", 0, "shared_bytes", to=1 << 30), "shared_bytes"),
    "negative shared memory": (_set("binaries", 0, "shared_bytes", to=-1), "shared_bytes"),
    "a thousand warps": (_set("binaries", 0, "num_warps", to=1000), "num_warps"),
    "no warps": (_set("binaries", 0, "num_warps", to=0), "num_warps"),
    "a huge cluster": (_set("binaries", 0, "num_ctas", to=4096), "num_ctas"),
    "gigabytes of scratch": (_set("binaries", 0, "global_scratch_bytes", to=1 << 40), "global_scratch_bytes"),
    "no binary": (_set("binaries", to=[]), "binaries are not those"),
    "another kernel's binary": (_set("binaries", 0, "key", to="0" * 64), "binaries are not those"),
    "a binary that is no base64": (_set("binaries", 0, "cubin", to="!!"), "cubin"),
    "a pointer outside its buffer": (_set(*LAUNCH, "args", 1, "offset", to=1 << 20), "outside buffer"),
    "a negative offset": (_set(*LAUNCH, "args", 1, "offset", to=-4), "offset"),
    "a buffer that is not there": (_set(*LAUNCH, "args", 1, "buffer", to=9), "buffer 9"),
    "a scalar for a pointer": (
        _set(*LAUNCH, "args", 0, to={"kind": "scalar", "type": "i64", "value": 1 << 40}),
        "scalar of type i64 is passed",
    ),
    "a pointer for a scalar": (_set(*LAUNCH, "args", 2, to={"kind": "pointer", "buffer": 0}), "pointer is passed"),
    "too few arguments": (_set(*LAUNCH, "args", to=[]), "arguments"),
    "a scalar of no type": (_set(*LAUNCH, "args", 2, "type", to="*fp32"), "type"),
    "a scalar out of range": (_set(*LAUNCH, "args", 2, "value", to=2**80), "value"),
    "wrong signature": (_set(*KERNEL, "signature", to=[["x_ptr", "*fp32"]]), "arguments"),
    "a name that is no name": (_set(*KERNEL, "name", to="a; import os"), "name"),
    "a language nobody speaks": (_set(*KERNEL, "language", to="cobol"), "language"),
    "code without end": (_set(*KERNEL, "code", to="#" * (1 << 23)), "code"),
    "Python for code": (_set(*KERNEL, "text", to="import os"), "text"),
    "a parameter of no kind": (_set(*KERNEL, "signature", 0, 1, to="constexpr; import os"), "signature"),
    "IR of nothing": (_set("binaries", 0, "ir", to=""), "must hold IR unless"),
    "IR that is none": (_set("binaries", 0, "ir", to="module {}"), "no public function"),
    "IR of another kernel": (_edit_ir("@softmax_kernel", "@other"), "is of a function other"),
    "IR of other parameters": (_edit_ir("%arg2: i32", "%arg2: i64"), "parameter 2 of kernel softmax_kernel is i64"),
    "IR of fewer parameters": (_edit_ir(", %arg2: i32", ""), "is passed 3 values and its IR takes 2"),
    "a claim that is not so": (
        _edit_ir("%arg2: i32", "%arg2: i32 {tt.divisibility = 16 : i32}"), "parameter 2 is a multiple of 16, but 127",
    ),
    "a claim of an address": (
        _edit_ir("divisibility = 16", "divisibility = 4096"), "parameter 0 is a multiple of 4096, but an address",
    ),
    "a claim nobody checks": (_edit_ir("%arg2: i32", "%arg2: i32 {tt.contiguity = 64 : i32}"), "only divisibility"),
    "an address between multiples": (_set(*LAUNCH, "args", 1, "offset", to=4), "parameter 1 is a multiple of 16"),
    "an output outside its buffer": (_set(*VIEW, "offset", to=1 << 20), "outside it"),
    "an output of negative strides": (_set(*VIEW, "strides", to=[-127, 1]), "strides"),
    "an output of huge strides": (_set(*VIEW, "strides", to=[1 << 50, 1]), "strides"),
    "an output larger than its buffer": (_set(*VIEW, "shape", to=[5000, 127]), "outside it"),
    "NaN sizes": (_set(*VIEW, "shape", to=[float("nan"), 127]), "shape"),
    "endless sizes": (_set(*VIEW, "shape", to=[float("inf"), 127]), "shape"),
    "negative sizes": (_set(*VIEW, "shape", to=[-5, 127]), "shape"),
    "sizes without strides": (_set(*VIEW, "strides", to=[1]), "strides"),
    "twenty dimensions": (_set(*VIEW, "shape", to=[1] * 20), "shape"),
    "a dtype nobody knows": (_set(*VIEW, "dtype", to="float3"), "dtype"),
    "a buffer of terabytes": (_set("plan", "buffers", 1, "bytes", to=1 << 45), "bytes"),
    "buffers of terabytes together": (_set("plan", "buffers", to=[_buffer(1 << 38)] * 2), "buffers sum"),
    "a buffer of negative size": (_set("plan", "buffers", 1, "bytes", to=-1), "bytes"),
    "no buffers": (_set("plan", "buffers", to=[]), "buffer"),
    "a node of no kind": (_set(*LAUNCH, "kind", to="shell"), "kind"),
    "a fill outside its buffer": (
        _set("plan", "nodes", 0, to={"kind": "fill", "value": 0, "view": {
            "buffer": 1, "dtype": "float32", "shape": [1], "strides": [1], "offset": 1 << 30}}),
        "outside it",
    ),
    "an operation that reads files": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.from_file.default", "views": [],
                                      "args": ["/etc/passwd"], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "an operation that is a path": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.__class__.mro", "views": [],
                                      "args": [], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "an operation that makes a view": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.as_strided.default", "views": [],
                                      "args": [], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "an operation that turns its tensor": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.t_.default", "views": [],
                                      "args": [], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "an operation that reads around its tensor": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.as_strided_copy.default", "views": [],
                                      "args": [], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "an operation that computes nothing": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.empty_like.default", "views": [],
                                      "args": [], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "an operation that torch does not have": (
        _set("plan", "nodes", 0, to={"kind": "aten", "op": "aten.conjure.default", "views": [],
                                      "args": [], "kwargs": {}, "outputs": []}),
        "op",
    ),
    "options without bottom": (_set(*KERNEL, "options", to=[["num_warps", json.loads("[" * 40 + "]" * 40)]]), "options"),
    "an input too few": (_set("plan", "inputs", to=[]), "does not belong to exactly one input"),
    "an input that is no tensor": (_set("plan", "inputs", 0, to=None), "does not belong to exactly one input"),
    "an input that is scratch": (_set("plan", "inputs", 0, "buffer", to=1), "does not belong to exactly one input"),
    "slack behind an input": (_set("plan", "inputs", 0, "shape", to=[1, 127]), "larger than the input"),
    "a field nobody knows": (_set("plan", "python", to="import os"), "python"),
    "an older version": (_set("plan", "version", to=1), "record its source again"),
    "a version of nothing": (_set("plan", "version", to="x" * 5000), "version"),
    "a GPU from the past": (_set("plan", "target", to=3), "target"),
    "an address of no buffer": (_addresses((0, 9, 0)), "outside buffer 9"),
    "an address behind its buffer": (_addresses((0, 0, 5 * 127 * 4 + 1)), "outside buffer 0"),
    "an address before its buffer": (_addresses((0, 0, -8)), "offset"),
    "an address behind its table": (_addresses((2, 0, 0)), "outside it"),
    "an address at no element": (_addresses((-1, 0, 0)), "at"),
    "two addresses in one place": (_addresses((1, 0, 0), (1, 1, 0)), "out of order"),
    "an address of 32 bits": (_addresses((0, 0, 0), dtype="int32"), "64 bits"),
    "a number where an address belongs": (_addresses((0, 0, 0), first=1), "a number where"),
    "addresses in an output": (_addresses((0, 0, 0), buffer=1), "not only kernels"),
    "addresses in an input": (_addresses((0, 1, 0), buffer=0), "not only kernels"),
    "addresses that are copied": (_copied, "not only kernels"),
    "a list for a plan": (_set("plan", to=[]), "plan"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_read(plan, name):
    change, field = REFUSED[name]
    data = copy.deepcopy(plan)
    change(data)
    with pytest.raises(PlanError) as caught:
        validated(CompiledPlan, json.dumps(data))
    assert field in str(caught.value), str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "\x00" * 100, "[" * 100_000, '{"plan": NaN}', "9" * 5000])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(PlanError):
        validated(CompiledPlan, text)


def test_a_million_nodes_are_refused_quickly(plan):
    node = json.dumps(plan["plan"]["nodes"][0])
    data = json.dumps(plan).replace(json.dumps(plan["plan"]["nodes"]), "[" + ",".join([node] * 1_000_000) + "]")
    began = time.monotonic()
    with pytest.raises(PlanError) as caught:
        validated(CompiledPlan, data)
    assert "nodes" in str(caught.value)
    assert time.monotonic() - began < 5.0


def _second_output(data: dict) -> None:
    data["plan"]["outputs"] *= 2


RUN = {
    "an output that is an input": (_set(*VIEW, "buffer", to=0), {Status.WRONG}),
    "an output that overlaps itself": (_set(*VIEW, "strides", to=[0, 1]), {Status.WRONG, Status.REJECTED}),
    "an output of another shape": (_set(*VIEW, "shape", to=[5, 100]), {Status.WRONG, Status.REJECTED}),
    "an output of another dtype": (_set(*VIEW, "dtype", to="int32"), {Status.WRONG}),
    "an output too many": (_second_output, {Status.WRONG}),
    "no outputs": (_set("plan", "outputs", to=[]), {Status.WRONG, Status.REJECTED}),
    "an input of another dtype": (_set("plan", "inputs", 0, "dtype", to="int32"), {Status.REJECTED}),
    "an empty scratch buffer": (_set(*LAUNCH, "args", 1, "offset", to=2528), {Status.RUNTIME_ERROR, Status.WRONG}),
    "a size far too large": (_set(*LAUNCH, "args", 2, "value", to=2**31 - 1), {Status.RUNTIME_ERROR, Status.WRONG}),
    "a negative size": (_set(*LAUNCH, "args", 2, "value", to=-127), {Status.RUNTIME_ERROR, Status.WRONG}),
    "one program": (_set(*LAUNCH, "grid", to=[1, 1, 1]), {Status.WRONG}),
    "nothing to do": (_set("plan", "nodes", to=[]), {Status.WRONG, Status.REJECTED}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_what_reads_well_and_is_nonsense_gets_a_status(runner, plan, name):
    change, wanted = RUN[name]
    data = copy.deepcopy(plan)
    change(data)
    checked = runner.check(validated(CompiledPlan, json.dumps(data)), TASK.case(CASE), [(1, "nominal")])
    assert checked.status in wanted, (checked.status, checked.reason)
    assert len(checked.reason.split()) >= 4 and "Traceback" not in checked.reason, checked.reason


@pytest.mark.parametrize("cubin", [b"", b"\x7fELF", b"no cubin at all" * 100, b"\x7fELF\x02\x01\x01" + bytes(5000)])
def test_code_that_is_none_is_never_timed_as_if_it_were(runner, plan, cubin):
    data = copy.deepcopy(plan)
    made = validated(CompiledPlan, json.dumps(data))
    broken = made.model_copy(update={"binaries": (made.binaries[0].model_copy(update={"cubin": cubin}),)})
    found = runner.measure(broken, TASK.case(CASE), 1, False)
    if device() == "cuda":  # the driver does not load it
        assert not isinstance(found, Measurement), found
    # Without a GPU nothing reads the code: a time is modeled from the resources that the compiler's child told.


FORGED = """
import json, os

def run(x):
    with open("request.json") as file:
        request = json.load(file)
    records = []
    for case in request["cases"]:
        plan = json.loads(PLAN)
        plan["case"] = case["name"]
        {change}
        records.append({{"case": case["name"], "setting": 0, "plan": plan}})
    with open("result.json", "w") as file:
        json.dump({{"records": records, "needs": [], "configs": {{}}}}, file)
    os._exit(0)
"""
FORGERIES = {
    "inputs of another case": "plan['inputs'] = plan['inputs'] * 3",
    "no inputs": "plan['inputs'] = []",
    "another case's name": "plan['case'] = 'other'",
    "another target": "plan['target'] = 120",
    "options without bottom": "plan['kernels'][0]['options'] = [['num_warps', json.loads('[' * 900 + ']' * 900)]]",
    "Python": "plan['kernels'][0]['text'] = 'import os'",
    "code that does not parse": "plan['kernels'][0]['code'] = 'def ('",
    "code of another dialect": "plan['kernels'][0]['code'] = plan['kernels'][0]['code'].replace('tt.return', 'llvm.return')",
    "code that names a file": "plan['kernels'][0]['options'] = [['ir_override', '/tmp/other.ttir']]",
    "a claim that is not so": "plan['kernels'][0]['code'] = plan['kernels'][0]['code'].replace("
                              "'%n: i32', '%n: i32 {tt.divisibility = 16 : i32}')",
    "a type that is none": "plan['kernels'][0]['signature'][0][1] = '*evil'",
    "options that are none": "plan['kernels'][0]['options'] = [['num_warps', 'many'], ['arch', 'sm_1']]",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_recording_is_judged_as_data(judge, plan, name):
    text = f"PLAN = {json.dumps(plan['plan'])!r}\n" + FORGED.format(change=FORGERIES[name])
    evaluation = judge.evaluate(Source(text), Purpose.SCORE)
    assert evaluation.status in {Status.REJECTED, Status.BUILD_ERROR, Status.WRONG, Status.RUNTIME_ERROR}
    assert evaluation.score is None
    assert len(evaluation.reason.split()) >= 4, evaluation.reason


def test_the_judge_goes_on_after_all_that(judge):
    evaluation = judge.evaluate(Source(HONEST.read_text()), Purpose.PROBE)
    assert evaluation.status is Status.PASSED, evaluation.reason


def test_a_plan_file_that_is_a_folder_or_missing(tmp_path: Path):
    from evo_kernel.fitness.plan.launch_plan import load_plan_file

    for path in (tmp_path, tmp_path / "missing.plan"):
        with pytest.raises(PlanError, match="cannot read"):
            load_plan_file(path)
