"""The recorder's child process: imports one candidate and records its `run` for each case and knob setting.

Request: {"arch", "cases": [{"name", "inputs": [...]}], "settings": [{"knobs", "text"}, ...], "resources": {...},
"passed_over": {autotuned kernel: how many of its configurations do not fit}}.
Answer: {"records": [{"case", "setting", "plan" | "fault": {"status", "reason", "misfit"}}], "needs": [kernel, ...],
"configs": {autotuned kernel: {"texts": [configuration, ...], "own": position of the one used where no knob sets it,
"pruned": {case: [position, ...]}}}}.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from torch._library.triton import set_wrap_triton_enabled
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton._C.libtriton import ir
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from evo_kernel import cuda
from evo_kernel.fitness.record.autotuning import Autotuning
from evo_kernel.fitness.record.device import impersonate
from evo_kernel.fitness.record.launches import LaunchWriter
from evo_kernel.fitness.record.torch_calls import AtenWriter, HostCalls, RecordedMode, fake_inputs
from evo_kernel.fitness.record.tracing import NeedsBinary, PlanTracer, RecordingRefused
from evo_kernel.tasks import blank
from evo_kernel.tasks.layout import convolutions_by_cudnn

MAX_REASON = 2000
MODULE = "kernel"
"""Name of the candidate's module and file. IR holds function names, so it must be the same in every recording."""


def warm_up() -> None:
    """Do in the zygote, once, what every child would repeat."""
    ir.load_dialects(ir.context())
    fake_tensor.init_gpu_context = lambda device: None
    FakeTensor.__getitem__ = get_item
    FakeTensor.__setitem__ = set_item
    FakeTensor.copy_ = copy_into  # pyright: ignore[reportAttributeAccessIssue]
    blank.keep_dynamo_out()
    # Views and copies of fake tensors ask whether they are of this class, whose import takes 0.2 s.
    blank.keep_out("torch.distributed.tensor", DTensor=type("DTensor", (), {}))
    with RecordedMode():
        torch.empty(2, 2, device="cpu").add(1).t().sum()


def handle(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Record every (case, setting). Faults are part of the answer, never exceptions."""
    impersonate(request["arch"])
    records: list[dict[str, Any]] = []
    needs: list[dict[str, Any]] = []
    configs: dict[str, dict[str, Any]] = {}
    for number, setting in enumerate(request["settings"]):
        session = _Session(request, setting, configs)
        for place, case in enumerate(request["cases"]):
            # Each case gets a fresh import: state that host code keeps between calls must not enter a plan, be it
            # another case's answer or a workspace that another plan allocated.
            fault = session.load(folder, f"candidate_{number}_{place}")
            outcome = {"fault": fault} if fault else session.record(case, needs)
            records.append({"case": case["name"], "setting": number, **outcome})
    return {"records": records, "needs": needs, "configs": configs}


class _Session:
    """One import of the candidate with one knob setting."""

    def __init__(self, request: dict[str, Any], setting: dict[str, Any], configs: dict[str, Any]) -> None:
        self._request, self._text, self._configs = request, setting["text"], configs
        self._knobs: dict[str, int] = dict(setting["knobs"])
        self._run: Callable[..., Any] | None = None

    def load(self, folder: str, name: str) -> dict[str, str] | None:
        path = os.path.join(folder, name, f"{MODULE}.py")
        os.mkdir(os.path.dirname(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._text)
        spec = importlib.util.spec_from_file_location(MODULE, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[MODULE] = module
        try:
            spec.loader.exec_module(module)
        # Candidate code may raise anything, SystemExit included.
        except BaseException as error:  # noqa: BLE001
            return _fault("build_error", f"the module does not import: {_explain(error, path)}")
        self._run = getattr(module, "run", None)
        if not callable(self._run):
            return _fault("build_error", "the module defines no function `run`, which the judge calls")
        return None

    def record(self, case: dict[str, Any], needs: list[dict[str, Any]]) -> dict[str, Any]:
        tracer = PlanTracer(self._request["arch"], self._request["resources"])
        mode = RecordedMode()
        try:
            values, views = fake_inputs(mode, case["inputs"], tracer)
            autotuning = Autotuning(case["name"], self._knobs, self._request["passed_over"], self._configs)
            with _hooked(tracer, autotuning), convolutions_by_cudnn(), mode, HostCalls(), AtenWriter(tracer):
                assert self._run is not None
                result = self._run(*values)
            outputs = tracer.finish(result, bool(case["mutates"]))
            if any(tracer.view(values[position]) != views[position] for position in case["mutates"]):
                raise RecordingRefused("run gives an input that it must change other memory, or other strides", "wrong")
        except NeedsBinary as need:
            needs.append(need.kernel)
            return {"fault": _fault("build_error", "needs a compiled kernel")}
        except RecordingRefused as refusal:
            return {"fault": _fault(refusal.status, str(refusal)) | {"misfit": refusal.misfit}}
        # Candidate code may raise anything, SystemExit included.
        except BaseException as error:  # noqa: BLE001
            cause = _refusal(error)
            if cause is not None:
                return {"fault": _fault(cause.status, str(cause)) | {"misfit": cause.misfit}}
            return {
                "fault": _fault("build_error", f"run failed while it was recorded: {_explain(error, 'candidate_')}")
            }
        plan = {
            "case": case["name"],
            "target": self._request["arch"],
            "knobs": sorted(self._knobs.items()),
            "inputs": views,
            "outputs": outputs,
            "buffers": tracer.buffers,
            "kernels": tracer.kernels,
            "nodes": tracer.nodes,
        }
        return {"plan": plan}


@contextlib.contextmanager
def _hooked(tracer: PlanTracer, autotuning: Autotuning) -> Iterator[None]:
    """Context in which Triton's launches are recorded and autotuners use the requested configuration."""
    writer = LaunchWriter(tracer)

    def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return writer.triton(kernel, args, grid, warmup, options)

    def address(tensor: torch.Tensor) -> int:
        return tracer.address(tensor)

    saved = JITFunction.run, triton.set_allocator
    tuners = [(tuner, tuner.__dict__["run"]) for tuner in _with_subclasses(Autotuner) if "run" in tuner.__dict__]
    data_ptr = FakeTensor.__dict__.get("data_ptr")
    JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
    for tuner, _ in tuners:
        tuner.run = lambda tuner, *args, **kwargs: autotuning.run(tuner, args, kwargs)
    FakeTensor.data_ptr = address  # pyright: ignore[reportAttributeAccessIssue]
    triton.set_allocator = lambda allocator: None
    cuda.recorder = writer.cuda
    try:
        with set_wrap_triton_enabled(False):  # a kernel in torch.library.wrap_triton is launched as it is
            yield
    finally:
        cuda.recorder = None
        JITFunction.run, triton.set_allocator = saved
        for tuner, method in tuners:
            tuner.run = method
        if data_ptr is None:
            del FakeTensor.data_ptr
        else:
            FakeTensor.data_ptr = data_ptr


def _with_subclasses(cls: type) -> list[Any]:
    """Packages have autotuners of their own."""
    return [cls, *(found for subclass in cls.__subclasses__() for found in _with_subclasses(subclass))]


def _fault(status: str, reason: str) -> dict[str, str]:
    return {"status": status, "reason": reason[:MAX_REASON]}


def _refusal(error: BaseException) -> RecordingRefused | None:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RecordingRefused):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _explain(error: BaseException, place: str) -> str:
    """The exception and, if it can be found, the candidate's line."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if place in frame.filename]
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    at = f" (line {lines[-1].lineno}: {lines[-1].line})" if lines else ""
    return f"{type(error).__name__}: {str(error).strip()[:800]}{at}"


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]` for integers, slices, None, Ellipsis and index tensors, by the operations that torch calls.

    torch's own needs a CUDA device guard before it dispatches, which a CPU build lacks.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    consumed = sum(_width(part) for part in parts)
    if Ellipsis not in [part for part in parts if not isinstance(part, torch.Tensor)]:
        parts.append(Ellipsis)
    view, dim = tensor, 0
    picked: list[torch.Tensor | None] = []
    for part in parts:
        if part is None:
            view = view.unsqueeze(dim)
            picked.append(None)
            dim += 1
        elif part is Ellipsis:
            skipped = tensor.dim() - consumed
            picked += [None] * skipped
            dim += skipped
        elif isinstance(part, slice):
            view = _slice(view, dim, part)
            picked.append(None)
            dim += 1
        elif isinstance(part, torch.Tensor):
            picked.append(part)
            dim += _width(part)
        elif isinstance(part, (list, range)):
            picked.append(torch.tensor(list(part), device=tensor.device))
            dim += 1
        else:
            view = torch.ops.aten.select.int(view, dim, int(part))
    if any(part is not None for part in picked):
        return torch.ops.aten.index.Tensor(view, picked)
    return view if view is not tensor else torch.ops.aten.alias.default(tensor)


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value` for basic indexing: a fill or a copy of the indexed view."""
    target = get_item(tensor, index)
    if isinstance(value, torch.Tensor):
        torch.ops.aten.copy_.default(target, value)
    else:
        torch.ops.aten.fill_.Scalar(target, value)


def copy_into(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`tensor.copy_(source)`. Decompositions of operations with `out` call torch's own, which needs a device guard."""
    return torch.ops.aten.copy_.default(tensor, source, non_blocking)


def _width(part: Any) -> int:
    """How many dimensions of the tensor one part of an index consumes."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
        return part.dim()
    return 1


def _slice(view: torch.Tensor, dim: int, part: slice) -> torch.Tensor:
    start, stop, step = part.indices(view.shape[dim])
    if step < 0:
        raise ValueError("step must be greater than zero")
    if (start, stop, step) == (0, view.shape[dim], 1):
        return view
    return torch.ops.aten.slice.Tensor(view, dim, start, max(start, stop), step)
