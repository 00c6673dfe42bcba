"""A generated program to IR and code, by Triton's own stages, and the child that compiles programs by their seeds.

Nothing is cached, no GPU is needed.
"""

from __future__ import annotations

import linecache
from typing import Any

import triton
from triton._C.libtriton import ir  # pyright: ignore[reportMissingImports]
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from benchmarks.fuzz.generate import from_seed
from benchmarks.fuzz.programs import ENTRY, Compiled, Program
from benchmarks.fuzz.stored import Case, case_of
from evo_kernel.tasks.helper_process import answer_requests

PREAMBLE = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n"


def compiled(program: Program, arch: int = 90, until: str = "cubin") -> Compiled:
    """IR and cubin of a program; `until="ttir"` leaves the cubin empty. Raises what Triton raises."""
    target = GPUTarget("cuda", arch, 32)
    source = ASTSource(fn=function(program), signature=dict(program.signature), constexprs={}, attrs=_hints(program))
    backend = make_backend(target)
    options = backend.parse_options({**program.options, **source.parse_options()})
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation(options)  # pyright: ignore[reportAttributeAccessIssue]
    module = source.make_ir(target, options, codegen, backend.get_module_map(), context)
    text = ""
    for stage, lower in stages.items():
        module = lower(module, metadata)
        if stage == "ttir":
            text = module.str_nodebug()
            if until == "ttir":
                return Compiled(text, b"", "", 0, 0, 0)
    return Compiled(
        text,
        bytes(module),
        metadata["name"],
        32 * metadata["num_warps"],
        metadata["shared"],
        metadata.get("global_scratch_size", 0),
    )


def function(program: Program) -> Any:
    """The jitted function of a program's source, which Triton finds through `linecache`."""
    name = f"<program {program.seed}>"
    text = PREAMBLE + program.source
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "generated"}
    exec(compile(text, name, "exec"), space)
    return space[ENTRY]


def _hints(program: Program) -> dict[tuple[int], list[list[object]]]:
    """Every buffer begins at a multiple of 256 bytes."""
    aligned = {}
    for at, ((_, kind), arg) in enumerate(zip(program.signature, program.args, strict=True)):
        if kind.startswith("*") and isinstance(arg, tuple) and arg[1] % 16 == 0:
            aligned[(at,)] = [["tt.divisibility", 16]]
    return aligned


def child() -> None:
    answer_requests(answer)


def answer(seed: int) -> tuple[Case | None, str]:
    program = from_seed(seed)
    # A generated program that Triton refuses is counted and left out, whatever it raises.
    try:
        return case_of(program, compiled(program), triton.__version__), ""
    except Exception as error:  # noqa: BLE001
        text = str(error.__cause__ or error).strip().splitlines()
        return None, f"{type(error).__name__}: {text[-1] if text else ''}"
