"""Records kernel launches of `run`: Triton and Gluon through Triton's own binder, CUDA C++ as called.

Runs in the recorder's child; the parent parses and validates the result again.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.compiler.compiler import ASTSource
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.runtime.jit import JITFunction

from evo_kernel import cuda
from evo_kernel.fitness.compile.child import explain
from evo_kernel.fitness.plan.launch_plan import Kernel
from evo_kernel.fitness.record.tracing import NeedsBinary, PlanTracer, RecordingRefused, offset_bytes


class LaunchWriter:
    """Replaces JITFunction.run and CUDA C++ launches while a plan is recorded."""

    current: LaunchWriter | None = None  # of the plan that is being recorded

    def __init__(self, tracer: PlanTracer) -> None:
        self._tracer = tracer
        LaunchWriter.current = self

    def triton(self, kernel: JITFunction, args: tuple, grid: Any, warmup: bool, options: dict[str, Any]) -> Any:
        """Bind and specialise arguments as Triton does, and record the launch."""
        options = {**options, "debug": bool(options.get("debug") or getattr(kernel, "debug", False))}
        for hook in getattr(kernel, "pre_run_hooks", ()):
            hook(*args, **options)
        user_options = {name: value for name, value in options.items() if name not in kernel.arg_names}
        backend, binder = kernel.device_caches[0][-2:]
        bound, specialization, _ = binder(*args, **options)
        parsed, signature, constants, attributes = kernel._pack_args(
            backend, options, bound, specialization, user_options
        )
        passed = list(_all_passed(signature, bound))
        kept = {name: value for name, value in sorted(user_options.items()) if name not in FRONT_END_OPTIONS}
        spec = {
            "name": kernel.__name__,
            "language": "gluon" if isinstance(kernel, GluonJITFunction) else "triton",
            "code": lower(kernel, backend, parsed, signature, constants, attributes),
            "signature": [[name, kind] for name, kind, _ in passed],
            "options": [[k, v] for k, v in kept.items() if isinstance(v, (bool, int, float, str))],
        }
        if not warmup:
            self.launch(spec, _grid(grid(bound) if callable(grid) else grid), passed)
        return RecordedKernel(self._tracer, spec, signature, [p.name for p in kernel.params if not p.is_constexpr])

    def launch(self, spec: dict[str, Any], extent: list[int], passed: Sequence[tuple[str, str, Any]]) -> None:
        """Record the launch of a lowered kernel."""
        if math.prod(extent) > 0:
            self._node(spec, extent, [self._argument(kind, value) for _, kind, value in passed])

    def cuda(self, call: cuda.CudaLaunch) -> None:
        """Record a launch of evo_kernel.cuda."""
        kernel = call.kernel
        if math.prod(call.grid) == 0:
            return
        options: dict[str, Any] = {"num_warps": -(-math.prod(call.block) // 32)}
        options |= {"shared_bytes": call.shared_bytes} if call.shared_bytes else {}
        options |= {"flags": " ".join(kernel.options)} if kernel.options else {}
        spec = {
            "name": kernel.name,
            "language": "cuda",
            "code": kernel.code,
            "signature": [list(pair) for pair in kernel.parameters],
            "options": [list(pair) for pair in sorted(options.items())],
        }
        args = [self._cuda_argument(kernel, p, value) for p, value in zip(kernel.parameters, call.args, strict=True)]
        self._node(spec, list(call.grid), args, block=list(call.block))

    def _node(self, spec: dict[str, Any], grid: list[int], args: list[Any], **more: Any) -> None:
        node = {"kind": "launch", "kernel": self._tracer.kernel(spec), "grid": grid, "args": args, **more}
        self._tracer.note(node)

    def _argument(self, kind: str, value: Any) -> dict[str, Any]:
        if kind.startswith("*"):
            return self._tracer.pointer(value)
        if kind.startswith("tensordesc"):
            return self._descriptor(value)
        return self._scalar(kind, value)

    def _scalar(self, kind: str, value: Any) -> dict[str, Any]:
        if self._tracer.place(value) is not None:
            raise RecordingRefused("a kernel takes a raw address as a number: pass the tensor itself")
        return {"kind": "scalar", "type": kind, "value": value}

    def _cuda_argument(self, kernel: cuda.CudaKernel, parameter: tuple[str, str], value: Any) -> dict[str, Any]:
        name, kind = parameter
        if kind.startswith("*") != isinstance(value, torch.Tensor):
            expected = "a tensor" if kind.startswith("*") else "a number"
            raise RecordingRefused(
                f"{kernel.name} takes {expected} as `{name}`, not a {type(value).__name__}", "build_error"
            )
        if isinstance(value, torch.Tensor):
            return self._tracer.pointer(value)
        return self._scalar(kind, float(value) if kind in ("fp16", "bf16", "fp32", "fp64") else int(value))

    def _descriptor(self, value: Any) -> dict[str, Any]:
        base = value.base
        if getattr(value, "pixel_box_lower_corner", None) is not None:
            raise RecordingRefused("im2col tensor descriptors are not carried by launch plans: use a tiled one")
        self._tracer.known.forget(base)
        view = self._tracer.view(base)
        return {
            "kind": "descriptor",
            "buffer": view["buffer"],
            "offset": offset_bytes(base),
            "dtype": view["dtype"],
            "shape": [int(size) for size in value.shape],
            "strides": [int(stride) for stride in value.strides],
            "block": [int(size) for size in value.block_shape],
            "padding": getattr(value, "padding", "zero"),
            "round_tf32": bool(getattr(value, "round_f32_to_tf32", False)),
        }


class RecordedKernel:
    """The return value of a launch or warm-up: a compiled kernel, whose resources host code may read and which it may
    launch again, in a later recording too: packages keep compiled kernels."""

    def __init__(
        self, tracer: PlanTracer, spec: dict[str, Any], signature: Mapping[str, Any], parameters: Sequence[str]
    ) -> None:
        """`signature`: kind by parameter; `parameters`: those that the source does not declare as constexpr."""
        self._tracer, self._spec, self._signature, self._parameters = tracer, spec, signature, parameters

    def _init_handles(self) -> None:
        return

    def result(self) -> RecordedKernel:
        return self

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def run(*args: Any, stream: Any = None) -> None:
            names = self._parameters if len(args) == len(self._parameters) else list(self._signature)
            values = dict(zip(names, args, strict=True))
            kinds = {name: self._signature[name] for name in names}
            assert LaunchWriter.current is not None
            LaunchWriter.current.launch(self._spec, _grid(grid), list(_all_passed(kinds, values)))

        return run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        key = Kernel.model_validate(self._spec).key
        if key not in self._tracer.resources:
            raise NeedsBinary(self._spec)
        known = self._tracer.resources[key]
        if name == "metadata":
            return types.SimpleNamespace(**known)
        if name in known:
            return known[name]
        raise AttributeError(f"a recorded kernel has no attribute {name}; it knows {', '.join(sorted(known))}")


def _grid(grid: Any) -> list[int]:
    sizes = [grid] if isinstance(grid, int) else list(grid)
    return [int(size) for size in (*sizes, 1, 1)[:3]]


def _all_passed(signature: Mapping[str, Any], bound: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for name, kind in signature.items():
        yield from _passed(name, kind, bound[name])


def _passed(name: str, kind: Any, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, kind, value) that a launch passes for a parameter: each part of a tuple, nothing for a constexpr."""
    if isinstance(kind, str):
        if kind != "constexpr":
            yield name, kind, value
        return
    for number, (part, item) in enumerate(zip(kind, value, strict=True)):
        yield from _passed(f"{name}_{number}", part, item)


FRONT_END_OPTIONS = frozenset({
    "allowed_dot_input_precisions", "debug", "default_dot_input_precision", "deprecated_fp8_dot_operand_dtypes",
    "max_num_imprecise_acc_default", "sanitize_overflow", "supported_fp8_dtypes",
})  # fmt: skip
"""Options that only affect the front end."""
_FOLDER = re.compile(r'"[^"\\\n]*/([^"/\\\n]+":\d)')  # folder of a file in a location
_LIBRARY_PATH = re.compile(r'libpath = "[^"]*"')

_lowered: dict[str, str] = {}
"""Cache of IR, by everything that determines it: a job records the same kernels for many cases and settings."""


def lower(kernel: JITFunction, backend: Any, options: Any, signature: dict, constants: dict, attributes: dict) -> str:
    """The kernel's IR. `options` as parsed by the back end. Raises RecordingRefused with the compiler's message."""
    gluon = isinstance(kernel, GluonJITFunction)
    name = kernel.__name__
    # The candidate may set a function that names the kernel by its arguments; plans use the plain name.
    kernel.repr = lambda _: name  # pyright: ignore[reportAttributeAccessIssue]
    source = (GluonASTSource if gluon else ASTSource)(kernel, signature, constants, attributes)
    try:
        key = f"{gluon} {name} {source.hash()} {options}"
        if key not in _lowered:
            _lowered[key] = _lower(source, backend, options, "ttgir" if gluon else "ttir")
        return _lowered[key]
    # The front end raises many kinds of error for a bad kernel, and functions that it evaluates may raise any.
    except Exception as error:
        misfit = name if isinstance(error, CompileTimeAssertionFailure) else ""
        raise RecordingRefused(f"kernel {name} does not compile: {explain(error)}", "build_error", misfit) from error


def _lower(source: ASTSource, backend: Any, options: Any, last: str) -> str:
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementation, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(backend.target, options, implementation, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    metadata: dict[str, Any] = {}
    for stage, work in stages.items():
        module = work(module, metadata)
        if stage == last:
            break
    # Folders of the source and of Triton are not part of the kernel.
    return _LIBRARY_PATH.sub('libpath = ""', _FOLDER.sub(r'"\1', str(module)))
