"""Write down what `run` does: torch calls through a dispatch mode, kernel launches through Triton's own binder.

Runs in the recorder's child, over fake CUDA tensors that have shapes and no memory. Everything made here is parsed and
validated again by the parent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from evo_kernel.fitness.record.carry import CannotCarry, kernel_text

MAX_NODES = 4096  # as in evo_kernel.fitness.plan, which checks it again
ADDRESS_BITS = 40  # fake addresses: buffer number above, byte offset below; every buffer is 256-byte aligned and more
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_FULL = {"full": 1, "full_like": 1, "new_full": 2}  # position of the value
_SILENT = {"device", "detach", "alias", "lift_fresh", "_assert_async", "sym_size", "sym_stride", "is_pinned"}


class Refused(Exception):
    """The candidate does what a plan cannot hold. Becomes `status` with the message as its reason."""

    def __init__(self, reason: str, status: str = "rejected") -> None:
        super().__init__(reason)
        self.status = status


class NeedsBinary(Exception):
    """Host code asks for a compiled kernel's resources; the parent compiles it and records again."""

    def __init__(self, kernel: dict[str, Any]) -> None:
        super().__init__("needs a compiled kernel")
        self.kernel = kernel


class Tracer:
    """The plan in the making, as plain JSON values (see evo_kernel.fitness.plan for the fields)."""

    def __init__(self, arch: int, resources: dict[str, Any]) -> None:
        self.arch, self.resources = arch, resources
        self.buffers: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []  # storages stay alive, so that an address is never two things
        self._host: dict[int, torch.Tensor] = {}
        self._texts: dict[int, str] = {}

    # --- tensors ----------------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, host_value: torch.Tensor | None) -> dict[str, Any]:
        self._add_buffer(tensor, "input")
        if host_value is not None:
            self._host[_storage_key(tensor)] = host_value
        return self.view(tensor)

    def view(self, tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "buffer": self._buffer(tensor),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": int(tensor.storage_offset()),
        }

    def address(self, tensor: torch.Tensor) -> int:
        return ((self._buffer(tensor) + 1) << ADDRESS_BITS) + int(tensor.storage_offset()) * tensor.element_size()

    def host_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The known values of a tensor over a host-known input; None when only the GPU will know."""
        base = self._host.get(_storage_key(tensor))
        if base is None:
            return None
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def forget_host_value(self, tensor: torch.Tensor) -> None:
        self._host.pop(_storage_key(tensor), None)

    def _buffer(self, tensor: torch.Tensor) -> int:
        known = self._storages.get(_storage_key(tensor))
        return self._add_buffer(tensor, "scratch") if known is None else known

    def _add_buffer(self, tensor: torch.Tensor, kind: str) -> int:
        if tensor.device.type != "cuda":
            raise Refused(f"a tensor on {tensor.device} is used where the kernel needs one on the GPU")
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        self._storages[storage._cdata] = len(self.buffers)
        self.buffers.append({"kind": kind, "bytes": int(storage.nbytes())})
        return len(self.buffers) - 1

    # --- launches ---------------------------------------------------------------------------------------------------

    def launch(self, kernel: JITFunction, args: tuple, grid: Any, warmup: bool, options: dict[str, Any]) -> Any:
        """Answers for JITFunction.run: binds and specialises as Triton does, and writes the launch down."""
        user_options = {name: value for name, value in options.items() if name not in kernel.arg_names}
        backend, binder = kernel.device_caches[0][-2:]
        bound, specialization, _ = binder(*args, **options)
        packed_options = {"debug": False, **user_options}
        _, signature, constants, attributes = kernel._pack_args(
            backend, {**options, **packed_options}, bound, specialization, packed_options
        )
        spec = {
            "name": kernel.__name__,
            "language": "gluon" if type(kernel).__name__ == "GluonJITFunction" else "triton",
            "text": self._text(kernel),
            "signature": [[name, str(kind)] for name, kind in signature.items()],
            "constants": [[list(path), _constant(value)] for path, value in constants.items()],
            "attributes": [[list(path), [list(pair) for pair in pairs]] for path, pairs in attributes.items()],
            "options": [[k, v] for k, v in sorted(user_options.items()) if isinstance(v, (bool, int, float, str))],
        }
        if not warmup:
            extent = _grid(grid(bound) if callable(grid) else grid)
            if math.prod(extent) > 0:
                launch_args = [self._argument(kind, bound[name]) for name, kind in signature.items()]
                given = [arg for arg in launch_args if arg is not None]
                self.note({"kind": "launch", "kernel": self._kernel(spec), "grid": extent, "args": given})
        return RecordedKernel(self, spec)

    def note(self, node: dict[str, Any]) -> None:
        """Add a node to the plan. Raises Refused where a plan is full: nobody waits for a million launches."""
        if len(self.nodes) >= MAX_NODES:
            raise Refused(
                f"run makes more than {MAX_NODES} launches, fills and torch calls: a plan holds no more nodes"
            )
        self.nodes.append(node)

    def _text(self, kernel: JITFunction) -> str:
        if id(kernel) not in self._texts:
            try:
                self._texts[id(kernel)] = kernel_text(kernel)
            except CannotCarry as error:
                raise Refused(f"kernel {kernel.__name__}: {error}") from error
            self._kept.append(kernel)
        return self._texts[id(kernel)]

    def _kernel(self, spec: dict[str, Any]) -> int:
        if spec not in self.kernels:
            self.kernels.append(spec)
        return self.kernels.index(spec)

    def _argument(self, kind: Any, value: Any) -> dict[str, Any] | None:
        if kind == "constexpr":
            return None
        if not isinstance(kind, str):
            raise Refused("a kernel takes a tuple argument, which launch plans do not carry: pass its parts one by one")
        if kind.startswith("*"):
            if value is None:
                return None
            return {"kind": "pointer", "buffer": self._buffer(value), "offset": _offset_bytes(value)}
        if kind.startswith("tensordesc"):
            return self._descriptor(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >> ADDRESS_BITS:
            address = value >> ADDRESS_BITS
            if 0 < address <= len(self.buffers):
                raise Refused("a kernel takes a raw address as a number: pass the tensor itself")
        return {"kind": "scalar", "type": kind, "value": value}

    def _descriptor(self, value: Any) -> dict[str, Any]:
        base = value.base
        return {
            "kind": "descriptor",
            "buffer": self._buffer(base),
            "offset": _offset_bytes(base),
            "dtype": str(base.dtype).removeprefix("torch."),
            "shape": [int(size) for size in value.shape],
            "strides": [int(stride) for stride in value.strides],
            "block": [int(size) for size in value.block_shape],
            "padding": getattr(value, "padding", "zero"),
        }

    def finish(self, outputs: Any) -> list[dict[str, Any]]:
        """Views of what `run` returned."""
        values = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        if not isinstance(values, (tuple, list)) or not values:
            raise Refused(f"run returned {type(outputs).__name__}; it must return a tensor or a tuple of tensors")
        for value in values:
            if not isinstance(value, FakeTensor):
                raise Refused(f"run returned a {type(value).__name__} among its outputs; only tensors can be judged")
            if value.device.type != "cuda":
                raise Refused(f"run returned a tensor on {value.device}; outputs belong on the GPU", "wrong")
        return [self.view(value) for value in values]


class RecordedKernel:
    """What a launch or a warm-up returns: a compiled kernel as far as host code may ask."""

    def __init__(self, tracer: Tracer, spec: dict[str, Any]) -> None:
        self._tracer, self._spec = tracer, spec

    def _init_handles(self) -> None:
        return

    def result(self) -> RecordedKernel:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        key = _spec_key(self._spec)
        if key not in self._tracer.resources:
            raise NeedsBinary(self._spec)
        known = self._tracer.resources[key]
        if name == "metadata":
            return _Namespace(known)
        if name in known:
            return known[name]
        raise AttributeError(f"a recorded kernel has no attribute {name}; it knows {', '.join(sorted(known))}")


class _Namespace:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


class AtenWriter(TorchDispatchMode):
    """Notes every torch operation on fake CUDA tensors; allocations and views are free, fills become nodes."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1]
        if name == "_local_scalar_dense":
            return self._read(args[0])
        result = func(*args, **kwargs)
        if name in _SILENT or name in _ALLOCATIONS or _is_view(func):
            return result
        if not any(isinstance(t, torch.Tensor) and t.device.type == "cuda" for t in _flat((args, kwargs, result))):
            return result
        value = self._filled_value(name, args, kwargs)
        if value is not None and isinstance(result, torch.Tensor):
            self._tracer.forget_host_value(result)
            self._tracer.note({"kind": "fill", "view": self._tracer.view(result), "value": value})
        else:
            self._write(func, args, kwargs, result)
        return result

    def _read(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cuda" and not isinstance(tensor, FakeTensor):
            return tensor.item()
        known = self._tracer.host_value(tensor) if tensor.device.type == "cuda" else None
        if known is None:
            raise Refused(
                "run reads a tensor's values on the host (item, tolist, bool, int, or an if on a tensor): "
                "values are only known on the GPU. A task can mark small integer inputs as HOST_KNOWN"
            )
        return known.item()

    @staticmethod
    def _filled_value(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        if name in _FILLED:
            return _FILLED[name]
        if name in _FULL:
            value = kwargs.get("fill_value", args[_FULL[name]] if len(args) > _FULL[name] else None)
            return value if isinstance(value, (bool, int, float)) else None
        if name == "zero_":
            return 0
        if name == "fill_" and isinstance(args[1], (bool, int, float)):
            return args[1]
        return None

    def _write(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        tracer = self._tracer
        views: list[dict[str, Any]] = []

        def plain(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
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
            return value

        packed = {"args": plain(args), "kwargs": {key: plain(value) for key, value in kwargs.items()}}
        results = result if isinstance(result, (tuple, list)) else [result]
        if any(isinstance(item, torch.Tensor) and item.device.type == "cpu" for item in results):
            raise Refused(
                "run copies a tensor to the host (cpu, numpy): its values are only known on the GPU. "
                "Compute with them in a kernel"
            )
        outputs = [tracer.view(item) if isinstance(item, torch.Tensor) else None for item in results]
        for item in _flat((args, result)):
            if isinstance(item, torch.Tensor):
                tracer.forget_host_value(item) if func._schema.is_mutable else None
        op = f"aten.{func._schema.name.split('::')[-1]}.{func._overloadname}"
        tracer.note({"kind": "aten", "op": op, "views": views, "outputs": outputs, **packed})


def fake_inputs(mode: FakeTensorMode, specs: Sequence[dict[str, Any]], tracer: Tracer) -> tuple[list[Any], list[Any]]:
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


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _storage_key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _offset_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _grid(grid: Any) -> list[int]:
    sizes = [grid] if isinstance(grid, int) else list(grid)
    return [int(size) for size in (*sizes, 1, 1)[:3]]


def _constant(value: Any) -> Any:
    """A constexpr argument as JSON: numbers, strings, tuples, and marked dtypes and functions."""
    if isinstance(value, JITFunction):
        raise Refused("a function is passed to a kernel as an argument: call it by name in the kernel instead")
    if hasattr(value, "value") and type(value).__name__ == "constexpr":
        return _constant(value.value)
    if type(value).__name__ == "dtype":
        return {"dtype": str(getattr(value, "name", value)).removeprefix("torch.")}
    if isinstance(value, (tuple, list)):
        return {"tuple": [_constant(item) for item in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Refused(f"a kernel takes a constexpr of type {type(value).__name__}, which a plan cannot hold")


def _spec_key(spec: dict[str, Any]) -> str:
    from evo_kernel.fitness.plan import Kernel

    return Kernel.model_validate(spec).key
