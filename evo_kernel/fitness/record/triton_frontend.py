"""A launched kernel as IR: Triton's own front end and the first stage of its pipeline, as `triton.compile` runs them.

Runs in the recorder's child, which is the candidate's: what comes out is data for others to read.
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
"""Options that have had their effect once there is IR."""
_FOLDER = re.compile(r'"[^"\\\n]*/([^"/\\\n]+":\d)')  # of a file in a location
_LIBRARY_PATH = re.compile(r'libpath = "[^"]*"')

_lowered: dict[str, str] = {}
"""IR by all that decides it: a job records the same kernels for many cases and settings."""


def lower(kernel: JITFunction, backend: Any, options: Any, signature: dict, constants: dict, attributes: dict) -> str:
    """The kernel's IR under its own name. `options` as the back end parsed them.

    Raises RecordingRefused with the compiler's message where the kernel has a fault.
    """
    gluon = isinstance(kernel, GluonJITFunction)
    name = kernel.__name__
    # A function of the candidate may name the kernel after its arguments; plans know it by its own name.
    kernel.repr = lambda _: name  # pyright: ignore[reportAttributeAccessIssue]
    source = (GluonASTSource if gluon else ASTSource)(kernel, signature, constants, attributes)
    try:
        key = f"{gluon} {name} {source.hash()} {options}"
        if key not in _lowered:
            _lowered[key] = _lower(source, backend, options, "ttgir" if gluon else "ttir")
        return _lowered[key]
    # The front end raises many kinds of error for a bad kernel, and functions that it evaluates may raise any other.
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
    # Where the text comes from and where Triton is installed are nothing of the kernel's.
    return _LIBRARY_PATH.sub('libpath = ""', _FOLDER.sub(r'"\1', str(module)))
