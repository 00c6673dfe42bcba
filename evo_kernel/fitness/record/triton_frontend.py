"""Lowers a launched kernel to IR: Triton's front end and the first stage of its pipeline, as in `triton.compile`.

Runs in the recorder's child, together with the candidate's code, so the result is untrusted.
"""

from __future__ import annotations

import re
from typing import Any

from triton._C.libtriton import ir
from triton.compiler.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.runtime.jit import JITFunction

from evo_kernel.fitness.compile.messages import explain
from evo_kernel.fitness.record.tracing import RecordingRefused

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
        raise RecordingRefused(f"kernel {name} does not compile: {explain(error)}", "build_error") from error


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
