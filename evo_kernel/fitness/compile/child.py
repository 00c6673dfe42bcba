"""The compiler's child process: compiles IR or CUDA C++ to cubins. It receives nothing else of a candidate.

Request: {"arch", "kernels", "explain"}. Answer: {"answers": [{"metadata", "cubin", "ir"} or {"fault"}, ...]}, for at
least one kernel and, if they take long, not for all. `ir` is the compiled text: parsed and printed again, without
locations. `explain`: cubins name source lines, and answers also hold "ptx" and "log", what the assembler said.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import compile as triton_compile
from triton.compiler.compiler import make_backend
from triton.runtime import cache

from evo_kernel.fitness.compile.ir_text import with_kept_orders, with_reduced_layouts
from evo_kernel.fitness.sandbox.guards import landlock

SHARED_S = 1.0
"""A child starts no further kernel after so many seconds of CPU time. Another child costs little CPU time but waits for
its namespaces, which the operating system creates one at a time."""
_METADATA = (
    "name", "shared", "num_warps", "num_ctas", "global_scratch_size", "global_scratch_align", "profile_scratch_size",
    "profile_scratch_align", "launch_cooperative_grid", "launch_pdl", "tensordesc_meta", "num_stages",
)  # fmt: skip


def warm_up() -> None:
    """In the zygote: load the compiler's dialects, and let cache keys go without a hash of Triton's files (0.4 s).

    A child's cache is in its own folder, so one installation of Triton writes all of it.
    """
    ir.load_dialects(ir.context())
    cache.triton_key = _version  # pyright: ignore[reportAttributeAccessIssue]
    make_backend(GPUTarget("cuda", 90, 32)).hash()


def _version() -> str:
    return triton.__version__


def handle(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Compile kernels until SHARED_S is used up. A kernel's fault is its answer, never an exception."""
    began, answers = _processor_s(), []
    knobs.compilation.disable_line_info = not request["explain"]
    knobs.nvidia.dump_ptxas_log = request["explain"]
    for kernel in request["kernels"]:
        answers.append(_compile(kernel, request["arch"], folder, request["explain"]))
        if _processor_s() - began > SHARED_S:
            break
    return {"answers": answers}


def _processor_s() -> float:
    """CPU time of this process and of the assemblers that it has waited for."""
    return sum(os.times()[:4])


def _compile(kernel: dict[str, Any], arch: int, folder: str, told: bool) -> dict[str, Any]:
    try:
        if kernel["language"] == "cuda":
            return _compile_cuda(kernel, arch, folder, told)
        return compile_ir(kernel, arch, folder, told)
    # The compiler raises many kinds of error for a bad kernel.
    except BaseException as error:  # noqa: BLE001
        return {"fault": explain(error)}


def compile_ir(kernel: dict[str, Any], arch: int, folder: str, told: bool = False) -> dict[str, Any]:
    """Parse the IR and print it without locations, then compile the printed text; to explain it, the text with them."""
    target = GPUTarget("cuda", arch, 32)
    suffix = "ttgir" if kernel["language"] == "gluon" else "ttir"
    path = os.path.join(folder, f"{kernel['name']}.{suffix}")
    context = ir.context()
    ir.load_dialects(context)
    make_backend(target).load_dialects(context)
    _write(path, kernel["code"])
    module = ir.parse_mlir_module(path, context)
    text = module.str_nodebug()
    if not told:
        _write(path, text)
    with contextlib.redirect_stdout(io.StringIO()) as log:  # Triton prints what the assembler said
        compiled = triton_compile(path, target=target, options=dict(kernel["options"]))
    metadata = {name: getattr(compiled.metadata, name, None) for name in _METADATA}
    if suffix == "ttir":
        text = with_reduced_layouts(with_kept_orders(text, compiled.asm["ttgir"]), compiled.asm["ttgir"])
    if suffix == "ttgir":  # otherwise only the stage that made this text reports it
        metadata["tensordesc_meta"] = module.get_tensordesc_metadata()
    answer = {"metadata": metadata, "cubin": base64.b64encode(compiled.asm["cubin"]).decode(), "ir": text}
    return answer | ({"ptx": compiled.asm["ptx"], "log": log.getvalue()} if told else {})


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _compile_cuda(kernel: dict[str, Any], arch: int, folder: str, told: bool) -> dict[str, Any]:
    """Compile CUDA C++ with NVRTC, which under Landlock can read only its own headers."""
    from evo_kernel.fitness.compile import nvrtc

    library = nvrtc.load()
    readable = (*library.include, *library.folders)
    landlock([folder], readable)
    options = dict(kernel["options"])
    flags = (nvrtc.SILENT, *str(options.get("flags", "")).split(), *(nvrtc.EXPLAINED if told else ()))
    compiled = library.compile(kernel["code"], kernel["name"], arch, flags)
    metadata = dict.fromkeys(_METADATA) | {
        "name": compiled.symbol,
        "shared": options.get("shared_bytes", 0),
        "num_warps": options["num_warps"],
        "num_ctas": 1,
    }
    answer = {"metadata": metadata, "cubin": base64.b64encode(compiled.cubin).decode(), "ir": ""}
    return answer | ({"ptx": compiled.ptx, "log": compiled.log} if told else {})


_MESSAGE_CHARACTERS = 1200


def explain(error: BaseException) -> str:
    """Triton's message, cut to its end: the last lines name the kernel's line and the error."""
    text = str(error).strip() or type(error).__name__
    cause: BaseException | None = error
    for _ in range(10):  # calls of functions: each has a message of its own
        cause = cause and (cause.__cause__ or cause.__context__)
        if cause is not None and str(cause).strip() and str(cause).strip() not in text:
            text += f"\n{type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {text}"[-_MESSAGE_CHARACTERS:]
