"""Runs exported programs: recorded launches of machine code, for exactly the inputs that they were recorded for.

A program is data (see `Program`); nothing in it is evaluated. Guards: the GPU's compute capability, and of every input
dtype, sizes, strides, and the value where it is a number or was known on the host. An input that does not begin where
compiled code relies on it is copied first. The launches go to the CUDA driver, on PyTorch's current stream.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._tensor_map_bytes import TensorMap, encode  # pyright: ignore[reportMissingImports]  it lies there once exported

ALIGNED_BYTES = 16
"""Compiled code may rely on inputs that begin at a multiple of this."""
ON_A_CPU = "evo_kernel.fitness.ir.programs"
"""The module that executes kernels' IR without a GPU, where a process has loaded it: tests do."""


class CannotLaunch(RuntimeError):
    """The GPU, its driver or these inputs are not what a program is for; the message says what differs."""


def call_key(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What decides about a call, but values on the GPU and shared memory: quicker to make than `signature`."""
    return tuple(
        (value.dtype, value.shape, value.stride(), value.device, _held(value))
        if isinstance(value, torch.Tensor)
        else (type(value), repr(value))
        for value in inputs
    )


def signature(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What a case is found by: dtype, sizes and strides, or the number. A stride of a size of 1 means nothing.

    No case has a tensor whose memory is not its values: those that PyTorch has yet to negate, does not keep at all, or
    keeps in other tensors.
    """
    return tuple(
        (_held(value) + str(value.dtype)[6:], tuple(value.shape), _strides(value.shape, value.stride()))
        if isinstance(value, torch.Tensor)
        else (type(value).__name__, repr(value))
        for value in inputs
    )


def _held(value: torch.Tensor) -> str:
    if value.layout is not torch.strided or value.is_neg() or value.is_conj():
        return "lazy "
    return "lazy " if value.data_ptr() == 0 and value.numel() else ""  # around other tensors, or zeros not kept


def wanted(specs: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """The signature of a case's inputs."""
    return tuple(
        (spec["dtype"], tuple(spec["shape"]), _strides(spec["shape"], spec["strides"]))
        if "dtype" in spec
        else (type(spec["value"]).__name__, repr(spec["value"]))
        for spec in specs
    )


def _strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def told(entry: tuple[Any, ...]) -> str:
    """An input of a signature, for people."""
    if len(entry) == 2:
        return str(entry[1])
    dtype, shape, strides = entry
    dense = tuple(0 if size == 1 else math.prod(shape[axis + 1 :]) for axis, size in enumerate(shape))
    return f"{dtype} {shape}" + ("" if strides == dense else f" with strides {strides}")


def misplaced(inputs: Sequence[Any], target: int) -> str:
    """Why code for `target` (compute capability x 10) does not run where the inputs lie; empty where it does."""
    devices = {value.device for value in inputs if isinstance(value, torch.Tensor)}
    if len(devices) != 1:
        return f"inputs lie on {', '.join(sorted(map(str, devices))) or 'no device'}"
    (device,) = devices
    if device.type == "cpu":
        return "" if ON_A_CPU in sys.modules else "inputs lie on the CPU"
    if device.type != "cuda" or torch.version.cuda is None:
        return f"inputs lie on {device}, which is no NVIDIA GPU"
    major, minor = torch.cuda.get_device_capability(device)
    here = 10 * major + minor
    return "" if here == target else f"the GPU is sm_{here}; the code is for sm_{target}"


def values_differ(inputs: Sequence[Any], specs: Sequence[Mapping[str, Any]]) -> str:
    """Why inputs of the right signature are still not a case's: its launches follow from the values of some."""
    for number, (value, spec) in enumerate(zip(inputs, specs, strict=True)):
        if "host" in spec and repr(value.tolist()) != repr(spec["host"]):  # 0.0 and -0.0 are equal, not the same
            return f"the values of input {number} are not those that the launches were recorded with"
    return ""


def lasts(case: Mapping[str, Any], inputs: Sequence[Any], changed: Sequence[int]) -> bool:
    """Whether every call with the same `call_key` goes to this case: no value decides, nor which modules are loaded."""
    by_value = any("host" in spec for spec in case["inputs"])
    return not by_value and not changed and any(value.is_cuda for value in inputs if isinstance(value, torch.Tensor))


def shared(inputs: Sequence[Any], changed: Sequence[int]) -> str:
    """Why inputs of the right signature are still not a case's: one that a kernel changes holds memory of another."""
    spans = {n: _span(value) for n, value in enumerate(inputs) if isinstance(value, torch.Tensor)} if changed else {}
    for one in changed:
        for other, (low, high) in spans.items():
            if other != one and low < spans[one][1] and spans[one][0] < high:
                return f"input {one}, which is changed, and input {other} share memory"
    return ""


def _span(value: torch.Tensor) -> tuple[int, int]:
    """Addresses of its first byte and of the one behind its last."""
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    begin = value.data_ptr()
    return begin, begin + (reach * value.element_size() if value.numel() else 0)


class Program:
    """Launches of one kernel, by the name of a case.

    `data`: {"target", "precision", "codes", "cases"}. A code is a cubin with the function's name and resources. A case
    has "inputs", "buffers" (the number of an input, or [bytes, alignment]), "nodes" in order and "outputs".
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.target: int = data["target"]
        self.precision: str = data["precision"]
        self.codes: Sequence[Mapping[str, Any]] = data["codes"]
        self.cases = {case["name"]: case for case in data["cases"]}
        self._by_signature: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for case in data["cases"]:
            self._by_signature.setdefault(wanted(case["inputs"]), []).append(case)
        self._by_torch = {name for name, case in self.cases.items() if any(n["kind"] == "aten" for n in case["nodes"])}
        self._known: dict[tuple[Any, ...], str] = {}  # cases that no value decides about, by the keys of calls
        self._gpus: dict[int, _Gpu] = {}

    def __call__(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """The outputs, by the first case that takes these inputs. Raises CannotLaunch where none does."""
        called_with = call_key(inputs)
        if (known := self._known.get(called_with)) is not None:
            return self.run(known, inputs)
        if reason := misplaced(inputs, self.target):
            raise CannotLaunch(reason)
        found = signature(inputs)
        reasons = ["no case was recorded for " + ", ".join(map(told, found))]
        for case in self._by_signature.get(found, ()):
            places = [case["buffers"][view["buffer"]] for view in case["outputs"]]
            changed = [place for place in places if isinstance(place, int)]
            if reason := values_differ(inputs, case["inputs"]) or shared(inputs, changed):
                reasons = [reason]
                continue
            if lasts(case, inputs, changed):
                self._known[called_with] = case["name"]
            return self.run(case["name"], inputs)
        raise CannotLaunch(reasons[0])

    def run(self, name: str, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Outputs of a case whose guards these inputs have met."""
        device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
        if device.type != "cuda":
            return self._run(name, inputs, device, sys.modules[ON_A_CPU])
        gpu = self._gpus.get(device.index) or self._gpus.setdefault(device.index, _Gpu(device.index))
        if device.index == torch.cuda.current_device():
            return self._run(name, inputs, device, gpu)
        with torch.cuda.device(device):
            return self._run(name, inputs, device, gpu)

    def _run(self, name: str, inputs: Sequence[Any], device: torch.device, machine: Any) -> tuple[torch.Tensor, ...]:
        case, on_gpu = self.cases[name], isinstance(machine, _Gpu)
        buffers = [_buffer(entry, inputs, device) for entry in case["buffers"]]
        with _judged_settings(self.precision, device) if name in self._by_torch else contextlib.nullcontext():
            for node in case["nodes"]:
                kind = node["kind"]
                if kind == "launch":
                    given = buffers if on_gpu else [_bytes_in(data, device) for data in buffers]
                    machine.launch(self.codes[node["code"]], node, given, case["nodes"])
                elif kind == "fill":
                    _tensor(buffers, node["view"]).fill_(node["value"])
                elif kind == "copy":
                    _tensor(buffers, node["target"]).copy_(_tensor(buffers, node["source"]))
                elif kind == "constant":
                    table = _table(node["view"], node["data"])
                    for one in node.get("relocations", ()):
                        address = machine.address(buffers, one["target"]) + one["offset"]
                        table.view(-1).view(torch.int64)[one["at"]] = address
                    _tensor(buffers, node["view"]).copy_(table)
                else:
                    _aten(node, buffers, case["buffers"], device)
        for place in {view["buffer"] for view in case["outputs"]}:
            if isinstance(number := case["buffers"][place], int):
                own = _bytes_in(inputs[number], device)
                if own.data_ptr() != buffers[place].data_ptr():
                    own.copy_(buffers[place])  # an input changed in place that was copied for alignment
        return tuple(_tensor(buffers, view) for view in case["outputs"])


def _buffer(entry: Any, inputs: Sequence[Any], device: torch.device) -> torch.Tensor:
    """A tensor that begins where a buffer does: an input, or new bytes."""
    if isinstance(entry, int):
        value = inputs[entry].detach()
        return _bytes_in(value, device).clone() if value.data_ptr() % ALIGNED_BYTES else value
    size, alignment = entry
    made = torch.empty(size + alignment - 1, dtype=torch.uint8, device=device)
    if alignment == 1:
        return made
    shift = -made.data_ptr() % alignment
    return made[shift : shift + size]


def _bytes_in(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """From its first byte to its last, in its own memory."""
    low, high = _span(value)
    begin, count = value.storage_offset() * value.element_size(), high - low
    return torch.empty(0, dtype=torch.uint8, device=device).set_(value.untyped_storage(), begin, (count,))  # pyright: ignore[reportCallIssue]


def _tensor(buffers: Sequence[torch.Tensor], view: Mapping[str, Any]) -> torch.Tensor:
    data, dtype = buffers[view["buffer"]], getattr(torch, view["dtype"])
    if view["offset"] == 0 and _is(data, view):
        return data
    data = _bytes_in(data, data.device)
    if rest := data.numel() % dtype.itemsize:
        data = data[:-rest]
    typed = data.view(dtype)
    return typed.as_strided(view["shape"], view["strides"], typed.storage_offset() + view["offset"])


def _is(value: torch.Tensor, view: Mapping[str, Any]) -> bool:
    """Whether a tensor has the dtype, the sizes and the strides of a view."""
    return (
        value.dtype is getattr(torch, view["dtype"])
        and list(value.shape) == view["shape"]
        and list(value.stride()) == view["strides"]
    )


@functools.lru_cache(maxsize=256)
def _bytes_of(data: str) -> bytes:
    return base64.b64decode(data)


def _table(view: Mapping[str, Any], data: str) -> torch.Tensor:
    flat = (
        torch.frombuffer(bytearray(_bytes_of(data)), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    )
    return flat.view(getattr(torch, view["dtype"])).reshape(view["shape"])


_SETTINGS: threading.RLock = vars(sys.modules["torch.backends"]).setdefault("_evo_kernel_settings", threading.RLock())
"""Held by the thread that has changed PyTorch's settings, which are the process's: all exports have this one lock."""


def _judged_settings(precision: str, device: torch.device) -> contextlib.ExitStack:
    """A context with PyTorch's settings as where its operations were judged: cuDNN measures its algorithms."""
    cudnn: Any = torch.backends.cudnn
    settings: list[tuple[Any, str, Any]] = [(cudnn, "benchmark", True), (cudnn, "deterministic", True)]
    # The older allow_tf32 cannot be read where a process has set these.
    settings += [(place, "fp32_precision", precision) for place in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    stack = contextlib.ExitStack()
    stack.enter_context(_SETTINGS)
    if torch.is_autocast_enabled(device.type):
        stack.enter_context(torch.autocast(device.type, enabled=False))
    for place, name, value in settings:
        stack.callback(setattr, place, name, getattr(place, name))
        setattr(place, name, value)
    return stack


def _aten(node: Mapping[str, Any], buffers: list[torch.Tensor], entries: Sequence[Any], device: torch.device) -> None:
    """A torch operation. A result that is all of a new buffer becomes the buffer; others are copied there."""
    _, name, overload = node["op"].split(".")
    tensors = [_tensor(buffers, view) for view in node["views"]]

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            if "view" in value:
                return tensors[value["view"]]
            return device if "device" in value else getattr(torch, value.get("dtype") or value["torch"])
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    operation = getattr(getattr(torch.ops.aten, name), overload)
    made = operation(*plain(node["args"]), **{key: plain(value) for key, value in node["kwargs"].items()})
    for view, value in zip(node["outputs"], made if isinstance(made, (list, tuple)) else [made], strict=True):
        if view is None or not isinstance(value, torch.Tensor):
            continue
        entry, storage = entries[view["buffer"]], value.untyped_storage()
        is_whole = isinstance(entry, list) and 0 < entry[0] == value.nbytes == storage.nbytes() and _is(value, view)
        if is_whole and all(storage.data_ptr() != data.untyped_storage().data_ptr() for data in buffers):
            buffers[view["buffer"]] = value
            continue
        target = _tensor(buffers, view)
        if (target.data_ptr(), target.stride()) != (value.data_ptr(), value.stride()):
            target.copy_(value)


# ---- the CUDA driver, by ctypes: cuda.h of CUDA 12 and 13 ----------------------------------------------------------


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]  # fmt: skip


_COOPERATIVE, _CLUSTER, _CLUSTER_POLICY, _DEPENDENT = 2, 4, 5, 6  # CUlaunchAttributeID
_DYNAMIC_SHARED_BYTES, _ANY_CLUSTER = 8, 14  # CUfunction_attribute
_SPREAD = _PREFER_SHARED = 1  # CUclusterSchedulingPolicy, CUfunc_cache
_FREE_SHARED_BYTES, _PORTABLE_CLUSTER = 48 << 10, 8  # above these a function has to be told


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _ok(code: int, what: str) -> None:
    if code != 0:
        raise CannotLaunch(f"the driver does not {what} (CUDA error {code})")


@functools.cache
def _version() -> int:
    version = ctypes.c_int()
    _ok(_driver().cuDriverGetVersion(ctypes.byref(version)), "tell its version")
    return version.value


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """PyTorch's context of a device."""
    torch.empty(1, device=f"cuda:{device}")
    context, ordinal = ctypes.c_void_p(), ctypes.c_int()
    _ok(_driver().cuDeviceGet(ctypes.byref(ordinal), device), "know the GPU")
    _ok(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal), "give its context")
    return context


_FUNCTIONS: dict[tuple[int, str, str], ctypes.c_void_p] = {}


def _function(code: Mapping[str, Any], device: int) -> ctypes.c_void_p:
    """The function of a cubin, loaded once for a device: it stays."""
    key = (device, code["symbol"], code["cubin"])
    if key not in _FUNCTIONS:
        driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        _ok(driver.cuModuleLoadData(ctypes.byref(module), base64.b64decode(code["cubin"])), "take the machine code")
        _ok(driver.cuModuleGetFunction(ctypes.byref(function), module, code["symbol"].encode()), "find the function")
        if code["block_shared_bytes"] > _FREE_SHARED_BYTES:
            _ok(driver.cuFuncSetCacheConfig(function, _PREFER_SHARED), "set the function up")
            size = ctypes.c_int(code["shared_bytes"])
            _ok(driver.cuFuncSetAttribute(function, _DYNAMIC_SHARED_BYTES, size), "give that much shared memory")
        if code["cluster"] > _PORTABLE_CLUSTER:
            _ok(driver.cuFuncSetAttribute(function, _ANY_CLUSTER, ctypes.c_int(1)), "allow such clusters")
        _FUNCTIONS[key] = function
    return _FUNCTIONS[key]


class _Gpu:
    """Launches of one program on one GPU, which is current, on the current stream."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._launches: dict[int, _Launch] = {}  # by the identity of the program's node

    @staticmethod
    def address(buffers: Sequence[torch.Tensor], number: int) -> int:
        return buffers[number].data_ptr()

    def launch(
        self, code: Mapping[str, Any], node: Mapping[str, Any], buffers: Sequence[torch.Tensor], _nodes: Any
    ) -> None:
        if (made := self._launches.get(id(node))) is None:
            made = self._launches.setdefault(id(node), _Launch(code, node, self._device))
        made(buffers)


def _stream(device: int) -> int:
    """The handle of PyTorch's current stream: an object for it, as `current_stream` makes, takes ten times as long."""
    handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return torch.cuda.current_stream().cuda_stream if handle is None else handle(device)


class _Launch:
    """A launch, ready but for addresses and the stream. Thread-safe."""

    def __init__(self, code: Mapping[str, Any], node: Mapping[str, Any], device: int) -> None:
        self._device, self._context, self._what = device, _context(device), f"launch {code['symbol']}"
        _ok(_driver().cuCtxSetCurrent(self._context), "use its context")
        self._function = _function(code, device)
        self._addresses: list[tuple[ctypes.c_uint64, int, int]] = []
        self._maps: list[_Map] = []
        holders: list[Any] = []
        for slot in node["parameters"]:
            if isinstance(slot, str):
                holders.append(ctypes.create_string_buffer(bytes.fromhex(slot), len(slot) // 2))
            elif isinstance(slot, Mapping):
                self._maps.append(_Map(slot))
                holders.append(self._maps[-1].holder)
            else:
                self._addresses.append((ctypes.c_uint64(), *slot))
                holders.append(self._addresses[-1][0])
        self._table = (ctypes.c_void_p * max(1, len(holders)))(*map(ctypes.addressof, holders))
        self._attributes = _attributes(code)
        self._config = _Config(
            (ctypes.c_uint * 3)(*node["grid"]), (ctypes.c_uint * 3)(*node["block"]), code["shared_bytes"],
            None, ctypes.addressof(self._attributes), len(self._attributes),
        )  # fmt: skip
        self._by_reference = ctypes.byref(self._config)
        self._held = holders  # what the table points to
        self._lock = threading.Lock()

    def __call__(self, buffers: Sequence[torch.Tensor]) -> None:
        with self._lock:
            for holder, number, offset in self._addresses:
                holder.value = buffers[number].data_ptr() + offset
            for one in self._maps:
                one.point_into(buffers)
            self._config.stream = _stream(self._device)
            driver = _driver()
            _ok(driver.cuCtxSetCurrent(self._context), "use its context")
            _ok(driver.cuLaunchKernelEx(self._by_reference, self._function, self._table, None), self._what)


_MOST_PLACES = 64


class _Map:
    """A tensor map, encoded once for each place of its tensor: PyTorch's allocator gives the same few again."""

    def __init__(self, slot: Mapping[str, Any]) -> None:
        self._number, self._offset = slot["place"]
        self._map = TensorMap(**{name: tuple(v) if isinstance(v, list) else v for name, v in slot["map"].items()})
        self._encoded: dict[int, bytes] = {}  # by address
        self.holder = ctypes.create_string_buffer(128)

    def point_into(self, buffers: Sequence[torch.Tensor]) -> None:
        address = buffers[self._number].data_ptr() + self._offset
        if (encoded := self._encoded.get(address)) is None:
            if len(self._encoded) == _MOST_PLACES:
                self._encoded.clear()
            encoded = self._encoded[address] = encode(self._map, address, _version())
        self.holder.raw = encoded


def _attributes(code: Mapping[str, Any]) -> ctypes.Array[_Attribute]:
    found = []
    if code["dependent"]:
        found.append((_DEPENDENT, (1,)))
    if code["cooperative"]:
        found.append((_COOPERATIVE, (1,)))
    if code["cluster"] > 1:
        found += [(_CLUSTER, (code["cluster"], 1, 1)), (_CLUSTER_POLICY, (_SPREAD,))]
    made = (_Attribute * len(found))()
    for attribute, (kind, values) in zip(made, found, strict=True):
        attribute.id = kind
        attribute.value[: len(values)] = values
    return made
