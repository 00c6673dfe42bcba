"""The compiler's child: kernel text in, cubin out. It sees no candidate module, only self-contained kernel text.

Request: {"arch", "kernels"}: several are of one text. Answer: {"answers": [{"metadata", "cubin"} or {"fault"}, ...]},
at least one, and the first of them only where they take long.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import sys
from functools import cache
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile

from evo_kernel.fitness.confined.guards import landlock

SHARED_S = 1.0
"""After so many seconds of the processor's time a child takes up no further kernel. A child more costs little of that
time, and waits for its namespaces, which the kernel makes one at a time."""
_METADATA = (
    "name", "shared", "num_warps", "num_ctas", "global_scratch_size", "global_scratch_align", "profile_scratch_size",
    "profile_scratch_align", "launch_cooperative_grid", "launch_pdl", "tensordesc_meta", "num_stages",
)  # fmt: skip


def warm_up() -> None:
    """In the zygote: load the compiler's dialects, and hash Triton's own files for its cache keys (0.3 s) once."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    ir.load_dialects(ir.context())
    triton_key()
    make_backend(GPUTarget("cuda", 90, 32)).hash()


def handle(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Compile kernels, as many as are quick; what one does wrong is its answer. Slow ones get a child each."""
    began, answers = _processor_s(), []
    for kernel in request["kernels"]:
        answers.append(_compile(kernel, request["arch"], folder))
        if _processor_s() - began > SHARED_S:
            break
    return {"answers": answers}


def _processor_s() -> float:
    """Processor time of this process and of the assemblers that it has waited for."""
    return sum(os.times()[:4])


def _compile(kernel: dict[str, Any], arch: int, folder: str) -> dict[str, Any]:
    try:
        if kernel["language"] == "cuda":
            return _compile_cuda(kernel, arch, folder)
        function = _function(kernel, folder)
        source_type = ASTSource
        if kernel["language"] == "gluon":
            from triton.experimental.gluon._runtime import GluonASTSource

            source_type = GluonASTSource
        source = source_type(
            function,
            dict(kernel["signature"]),
            {tuple(path): _constant(value) for path, value in kernel["constants"]},
            {tuple(path): [list(pair) for pair in pairs] for path, pairs in kernel["attributes"]},
        )
        compiled = triton_compile(source, target=GPUTarget("cuda", arch, 32), options=dict(kernel["options"]))
        metadata = {name: getattr(compiled.metadata, name, None) for name in _METADATA}
        return {"metadata": metadata, "cubin": base64.b64encode(compiled.asm["cubin"]).decode()}
    # The compiler raises many kinds of error for a bad kernel, and the kernel's text may raise any other.
    except BaseException as error:  # noqa: BLE001
        return {"fault": _explain(error)}


def _compile_cuda(kernel: dict[str, Any], arch: int, folder: str) -> dict[str, Any]:
    """CUDA C++ through NVRTC, which reads no file but its own headers once the wall is up."""
    from evo_kernel.fitness.compiling import nvrtc

    library = nvrtc.load()
    readable = (*library.include, *library.folders)
    landlock([folder], readable)
    options = dict(kernel["options"])
    made = library.compile(kernel["text"], kernel["name"], arch, tuple(str(options.get("flags", "")).split()))
    metadata = dict.fromkeys(_METADATA) | {
        "name": made.symbol,
        "shared": options.get("shared_bytes", 0),
        "num_warps": options["num_warps"],
        "num_ctas": 1,
    }
    return {"metadata": metadata, "cubin": base64.b64encode(made.cubin).decode()}


def _function(kernel: dict[str, Any], folder: str) -> Any:
    return getattr(_module(kernel["text"], folder), kernel["name"])


@cache
def _module(text: str, folder: str) -> ModuleType:
    """Specialisations of one text share its module, so that it is read and hashed once."""
    name = "carried_kernel"
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        if "dtype" in value:
            return triton.language.dtype(value["dtype"])
        if "float" in value:
            return float(value["float"])
        if "tuple" in value:
            return tuple(_constant(item) for item in value["tuple"])
    return value


def _explain(error: BaseException) -> str:
    """Triton's message without its frames: the last lines name the kernel's line and the trouble."""
    text = str(error).strip() or type(error).__name__
    cause = error.__cause__ or error.__context__
    if cause is not None and str(cause).strip() and str(cause).strip() not in text:
        text += f"\n{type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {text}"[-1200:] if len(text) > 1200 else f"{type(error).__name__}: {text}"
