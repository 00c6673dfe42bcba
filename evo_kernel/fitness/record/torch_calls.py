"""Records torch calls of `run`: fills, copies and constant tables become nodes; allocations and views need none.

Any other operation on a GPU tensor becomes an `aten` node, which a task must allow (`ALLOW = "mixed"`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from evo_kernel.fitness.plan.launch_plan import MAX_TABLE_BYTES
from evo_kernel.fitness.plan.torch_operations import ALLOCATIONS, makes_view
from evo_kernel.fitness.record.tracing import PlanTracer, RecordingRefused, number

_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_FULL = {"full": 1, "full_like": 1, "new_full": 2}  # position of the value
_SILENT = {"device", "detach", "alias", "_assert_async", "sym_size", "sym_stride", "is_pinned", "_unsafe_view"}

_READS = (
    "run reads a tensor's values on the host (cpu, item, tolist, bool, int, or an if on a tensor): "
    "values are only known on the GPU. A task can mark small integer inputs as HOST_KNOWN"
)


class RecordedMode(FakeTensorMode):
    """Fake tensor mode for a process without a GPU in which `torch.cuda.is_available` is patched."""

    @property
    def avoid_device_init(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)


class HostCalls(TorchFunctionMode):
    """Replaces torch calls that use the CUDA library before they dispatch by the operations that they dispatch to.

    On fake CUDA tensors a CPU build of torch refuses these calls, and a CUDA build looks for a GPU.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _HOST_CALLS.get(func, func)(*args, **(kwargs or {}))


def _contiguous(tensor: torch.Tensor, memory_format: Any = torch.contiguous_format) -> torch.Tensor:
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return torch.ops.aten.clone.default(tensor, memory_format=memory_format)


def _to(tensor: torch.Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> torch.Tensor:
    other = kwargs.pop("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
    if other is not None:
        return _moved(tensor, other.device, other.dtype, copy=copy)
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
    return _moved(tensor, device, dtype, layout, copy)


def _moved(
    tensor: torch.Tensor,
    device: torch.device | None,
    dtype: torch.dtype | None = None,
    layout: torch.memory_format | None = None,
    copy: bool = False,
) -> torch.Tensor:
    device = tensor.device if device is None else device
    dtype = tensor.dtype if dtype is None else dtype
    as_it_is = layout in (None, torch.preserve_format) or tensor.is_contiguous(memory_format=layout)
    if device.type == tensor.device.type and dtype == tensor.dtype and as_it_is and not copy:
        return tensor
    return torch.ops.aten._to_copy.default(tensor, dtype=dtype, device=device, memory_format=layout)


def _item(tensor: torch.Tensor) -> Any:
    return torch.ops.aten._local_scalar_dense.default(tensor)


def _list(tensor: torch.Tensor) -> Any:
    if tensor.dim() == 0:
        return _item(tensor)
    return [_list(row) for row in torch.ops.aten.unbind.int(tensor)]


_HOST_CALLS: dict[Any, Any] = {
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.copy_: lambda tensor, source, non_blocking=False: torch.ops.aten.copy_.default(
        tensor, source, non_blocking
    ),
    torch.Tensor.cuda: lambda tensor, *args, **kwargs: _moved(tensor, torch.device("cuda", 0)),
    torch.Tensor.to: _to,
    torch.Tensor.new_tensor: lambda tensor, data, **kwargs: torch.tensor(
        data, **{"dtype": tensor.dtype, "device": tensor.device, **kwargs}
    ),
    torch.Tensor.__invert__: torch.ops.aten.bitwise_not.default,
    torch.Tensor.tolist: _list,
    torch.Tensor.item: _item,
    torch.Tensor.__bool__: lambda tensor: bool(_item(tensor)),
    torch.Tensor.__int__: lambda tensor: int(_item(tensor)),
    torch.Tensor.__index__: lambda tensor: operator.index(_item(tensor)),
    torch.Tensor.__float__: lambda tensor: float(_item(tensor)),
    torch.Tensor.pin_memory: lambda tensor, *args: tensor,
}


class AtenWriter(TorchDispatchMode):
    """Records every torch operation on fake CUDA tensors and tracks values that the host computes."""

    def __init__(self, tracer: PlanTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if (implementation := _implementation(func)) is not None:
            with self:
                return implementation(*args, **kwargs)
        name = func._schema.name.split("::")[-1]
        if name == "_local_scalar_dense":
            return self._read(args[0])
        result = func(*args, **kwargs)
        if name == "lift_fresh":
            self._tracer.known.keep(result, args[0])
            return result
        if name in _SILENT or name in ALLOCATIONS or makes_view(func):
            return result
        tensors = [t for t in _flat((args, kwargs, result)) if isinstance(t, torch.Tensor)]
        if any(t.device.type == "cuda" for t in tensors):
            self._note(func, name, args, kwargs, result)
        elif func._schema.is_mutable:
            for tensor in tensors:
                self._tracer.known.forget(tensor)
        elif isinstance(result, torch.Tensor):
            value = self._tracer.known.compute(func, args, kwargs, result)
            if value is not None:
                self._tracer.known.keep(result, value)
        return result

    def _note(self, func: Any, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Record an operation on the GPU as the cheapest equivalent node."""
        tracer = self._tracer
        if isinstance(result, torch.Tensor) and result.device.type != "cuda":
            brought_back = tracer.known.compute(func, args, kwargs, result)
            if brought_back is None:
                raise RecordingRefused(_READS)
            tracer.known.keep(result, brought_back)
            return
        if not isinstance(result, torch.Tensor):
            self._write(func, args, kwargs, result)
            return
        value = self._filled_value(name, args, kwargs)
        if value is not None and tracer.place(value) is not None:
            with _disable_current_modes():
                table = torch.full(result.shape, value, dtype=torch.int64)
            self._put(result, table, fresh=name != "fill_")
            return
        if value is not None:
            tracer.known.forget(result)
            tracer.note({"kind": "fill", "view": tracer.view(result), "value": value})
            return
        moved = name in ("clone", "_to_copy", "copy_") and self._copied(name, args, result)
        if moved:
            return
        table = None if func._schema.is_mutable else tracer.known.compute(func, args, kwargs, result)
        if table is None or not self._put(result, table, fresh=True):
            repeats = not func._schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags
            readable = tracer.known.compute(func, args, kwargs, result, read=True) if repeats else None
            self._write(func, args, kwargs, result)
            if readable is not None and result.storage_offset() == 0:
                tracer.known.set_input(result, tracer.known.cast(readable, result))

    def _read(self, tensor: torch.Tensor) -> Any:
        known = self._tracer.known.host(tensor)
        if known is None:
            raise RecordingRefused(_READS)
        return number(known)

    def _filled_value(self, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        if name in _FILLED:
            return _FILLED[name]
        if name in _FULL:
            value = kwargs.get("fill_value", args[_FULL[name]] if len(args) > _FULL[name] else None)
        elif name == "zero_":
            value = 0
        else:
            value = args[1] if name == "fill_" else None
        if isinstance(value, torch.Tensor):
            known = self._tracer.known.table(value)
            value = None if known is None else number(known)
        return value if isinstance(value, (bool, int, float)) else None

    def _copied(self, name: str, args: tuple, result: torch.Tensor) -> bool:
        """Record an operation that only moves data: a copy within the GPU, a table from the host. False for others."""
        tracer = self._tracer
        target, source = (args[0], args[1]) if name == "copy_" else (result, args[0])
        if not isinstance(source, torch.Tensor) or target.device.type != "cuda":
            return False
        value = tracer.known.table(source)
        if source.device.type != "cuda" and value is None:
            raise RecordingRefused(
                "run copies a tensor from the host whose values are not known: make it from numbers in run"
            )
        small = target.numel() * target.element_size() <= MAX_TABLE_BYTES
        if value is not None and (source.device.type != "cuda" or small):
            return self._put(target, value, fresh=name != "copy_")
        if source.dtype != target.dtype:
            return False
        tracer.known.forget(target)
        if target.numel():
            views = tracer.view(source.expand(target.shape)), tracer.view(target)
            tracer.note({"kind": "copy", "source": views[0], "target": views[1]})
        return True

    def _put(self, target: torch.Tensor, value: torch.Tensor, fresh: bool) -> bool:
        tracer = self._tracer
        value = tracer.known.cast(value, target)
        size = target.numel() * target.element_size()
        if size > MAX_TABLE_BYTES:
            raise RecordingRefused(
                f"run copies a table of {size} bytes from the host; a plan carries {MAX_TABLE_BYTES} at most: "
                "compute it in a kernel"
            )
        if size:
            tracer.note(tracer.table(tracer.view(target), value))
        tracer.known.forget(target)
        if fresh:
            tracer.known.keep(target, value)
        return True

    def _write(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        tracer = self._tracer
        views: list[dict[str, Any]] = []

        def plain(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                known = tracer.known.table(value) if value.dim() == 0 and value.device.type == "cpu" else None
                if known is not None:
                    return number(known)
                views.append(tracer.view(value))
                return {"view": len(views) - 1}
            if isinstance(value, torch.dtype):
                return {"dtype": str(value).removeprefix("torch.")}
            if isinstance(value, torch.device):
                return {"device": "cuda"}
            if isinstance(value, (torch.layout, torch.memory_format)):
                return {"torch": str(value).removeprefix("torch.")}
            if isinstance(value, (tuple, list)):
                return [plain(item) for item in value]
            if tracer.place(value) is not None:
                raise RecordingRefused("a torch operation takes an address (data_ptr) as a number: only kernels may")
            return value

        packed = {"args": plain(args), "kwargs": {key: plain(value) for key, value in kwargs.items()}}
        results = result if isinstance(result, (tuple, list)) else [result]
        outputs = [tracer.view(item) if isinstance(item, torch.Tensor) else None for item in results]
        for item in _flat((args, result)):
            if isinstance(item, torch.Tensor) and func._schema.is_mutable:
                tracer.known.forget(item)
        if func.namespace != "aten":
            raise RecordingRefused(f"run calls {func}, whose implementation is not known: only PyTorch's own may be")
        op = f"aten.{func._schema.name.split('::')[-1]}.{func._overloadname}"
        tracer.note({"kind": "aten", "op": op, "views": views, "outputs": outputs, **packed})


def _implementation(func: Any) -> Callable[..., Any] | None:
    """The candidate's function behind an operation that it made by torch.library.custom_op; None for others."""
    made = OPDEFS.get(func._schema.name)
    return None if made is None else made._backend_fns.get("cuda") or made._backend_fns.get(None)


def fake_inputs(
    mode: FakeTensorMode, specs: Sequence[dict[str, Any]], tracer: PlanTracer
) -> tuple[list[Any], list[Any]]:
    """Fake CUDA tensors (and plain numbers) for `run`, and their views for the plan."""
    values: list[Any] = []
    views: list[Any] = []
    for spec in specs:
        if "value" in spec:
            values.append(spec["value"])
            views.append(None)
            continue
        dtype = getattr(torch, spec["dtype"])
        with mode:
            tensor = torch.empty_strided(spec["shape"], spec["strides"], dtype=dtype, device="cuda")
        host = torch.tensor(spec["host"], dtype=dtype) if spec.get("host") is not None else None
        views.append(tracer.add_input(tensor, host))
        values.append(tensor)
    return values, views


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]
