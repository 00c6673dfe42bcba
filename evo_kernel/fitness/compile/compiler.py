"""Compiles kernels (IR or CUDA C++) to machine code in confined children, with a cache that candidates cannot modify.

Candidates, and all judges of a process, can share the cache: its key holds everything that determines the code (kernel,
options, target, compiler version), and a fresh child that receives nothing else and executes no kernel produces the
value.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evo_kernel.fitness.compile import instructions, machine_code, module_state, nvrtc
from evo_kernel.fitness.compile.assembler import Assembler, triton_version
from evo_kernel.fitness.compile.ir_text import NO_WAIT, dependence_fault, fault_of
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.fitness.plan.launch_plan import MAX_CODE, MAX_REGISTERS, MAX_SHARED, Binary, Kernel
from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.zygote import MalformedReply, Zygote
from evo_kernel.fitness.stages import COMPILING, Stages
from evo_kernel.lru_cache import Recent

Count = Annotated[int, Field(ge=0, lt=1 << 31)]


class _AnswerModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MetadataAnswer(_AnswerModel):
    """The compiler's metadata. `Binary` has narrower bounds and validates `tensordesc_meta`."""

    name: Annotated[str, Field(min_length=1, max_length=1000)]
    shared: Count
    num_warps: Count
    num_ctas: Count
    global_scratch_size: Count | None = None
    global_scratch_align: Count | None = None
    profile_scratch_size: Count | None = None
    profile_scratch_align: Count | None = None
    launch_cooperative_grid: bool | None = None
    launch_pdl: bool | None = None
    tensordesc_meta: Any = None


class KernelAnswer(_AnswerModel):
    """One kernel: its code (base64) with metadata, or a fault."""

    fault: str | None = None
    cubin: str | None = None
    metadata: MetadataAnswer | None = None
    ir: Annotated[str, Field(max_length=MAX_CODE)] = ""  # the compiled IR as MLIR prints it; empty for CUDA C++
    ptx: str = ""  # where the request asked for explanations, as the next
    log: str = ""


class Compiled(_AnswerModel):
    """The untrusted child's whole answer, in the order of the request; it may omit the last kernels."""

    answers: Annotated[list[KernelAnswer], Field(min_length=1, max_length=1 << 12)]


@dataclass(frozen=True)
class Explanation:
    """What a compilation told beside its binary. `log`: the assembler's messages, or NVRTC's."""

    ptx: str
    log: str


CACHE_ENTRIES = 4096
_BINARIES: Recent[tuple[int, Assembler | None, str], Binary] = Recent(CACHE_ENTRIES)
"""Of all compilers of this process that do not explain: by target, assembler and the kernel's key."""
_LOCK = threading.Lock()  # of that
MAX_STACK_BYTES = 32 << 10
"""Local memory a thread: 9 GB on an H200, a sixteenth of its memory. Spills of honest kernels take less than 4 KB."""


class Compiler:
    """Compiles kernels for one target with one assembler, and caches the binaries. Thread-safe."""

    def __init__(
        self,
        arch: int,
        deadline_s: float,
        stages: Stages | None = None,
        assembler: Assembler | None = None,
        explain: bool = False,
    ) -> None:
        """`assembler`: Triton's own by default. `explain`: binaries hold source lines and come with `explanations`; to
        be used for one source only, as the cache takes kernels that differ in their lines for one."""
        self._arch, self._stages, self._explain = arch, stages or Stages(), explain
        self.explanations: dict[str, Explanation] = {}  # by the kernel's key
        self._deadline_s = deadline_s
        self._assembler = assembler
        self._zygote = Zygote("compile", assembler.environment if assembler else None)
        self._cores = usable_cores()
        self._pool = ThreadPoolExecutor(self._cores, thread_name_prefix="compile")
        self._lock = threading.Lock()
        self._waiting = 0  # kernels that are being compiled, or will be
        self._cache: Recent[str, Binary | str] = Recent(CACHE_ENTRIES)  # reasons hold for this deadline

    def start(self) -> None:
        self._zygote.start()

    def close(self) -> None:
        self._zygote.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def compile(self, kernels: Sequence[Kernel], patience_s: float = math.inf) -> list[Binary | str]:
        """For each kernel, in order, a binary or the reason why there is none. Raises InfraError only.

        A reason is of type Forbidden if the kernel breaks a rule; otherwise it does not compile. Compilations longer
        than `patience_s` are abandoned and may be tried again later; those that reach the deadline are not.
        """
        known = {k.key: found for k in kernels if (found := self._found(k.key)) is not None}
        missing = {k.key: k for k in kernels if k.key not in known}
        compiled = {}
        if missing:
            with self._stages.at(COMPILING):
                compiled = dict(zip(missing, self._compile(list(missing.values()), patience_s), strict=True))
        for key, binary in compiled.items():
            self._keep(key, binary)
        return [known.get(k.key) or compiled[k.key] for k in kernels]

    def _found(self, key: str) -> Binary | str | None:
        with self._lock:
            if (found := self._cache.get(key)) is not None or self._explain:
                return found
        with _LOCK:
            return _BINARIES.get((self._arch, self._assembler, key))

    def _keep(self, key: str, binary: Binary | str) -> None:
        if isinstance(binary, Binary) and not self._explain:
            with _LOCK:
                _BINARIES.put((self._arch, self._assembler, key), binary)
        elif not isinstance(binary, _GivenUp):
            with self._lock:
                self._cache.put(key, binary)

    def _compile(self, kernels: list[Kernel], patience_s: float) -> list[Binary | str]:
        faults = {k.key: text_fault(k) for k in kernels}
        clean = [k for k in kernels if not faults[k.key]]
        results: dict[str, Binary | str] = {key: fault for key, fault in faults.items() if fault}
        with self._lock:
            self._waiting += len(clean)
            batches = list(_batches(clean, max(1, self._cores - self._waiting + len(clean))))
        try:
            for compiled in self._pool.map(self._compile_batch, batches, repeat(patience_s)):
                results |= compiled
            remaining = [[kernel] for kernel in clean if kernel.key not in results]
            for compiled in self._pool.map(self._compile_batch, remaining, repeat(patience_s)):
                results |= compiled
        finally:
            with self._lock:
                self._waiting -= len(clean)
        return [results[k.key] for k in kernels]

    def _compile_batch(self, kernels: Sequence[Kernel], patience_s: float) -> dict[str, Binary | str]:
        """Binaries or reasons by key: for several kernels, those that their child had time for; for one, always."""
        wanted = [kernel.model_dump(mode="json") for kernel in kernels]
        request = {"arch": self._arch, "kernels": wanted, "explain": self._explain}
        result = self._zygote.run(request, SandboxLimits(deadline_s=min(self._deadline_s, patience_s), may_fork=True))
        malformed = ""
        if result.data is not None:
            try:
                answers = result.read(Compiled).answers
                told = {k.key: Explanation(answer.ptx, answer.log) for k, answer in zip(kernels, answers, strict=False)}
                self.explanations.update(told if self._explain else {})
                return {k.key: _binary(k, answer, self.version) for k, answer in zip(kernels, answers, strict=False)}
            except MalformedReply as error:
                malformed = f": its answer is malformed: {error}"
        if len(kernels) > 1:  # one of them broke the child: each is tried alone
            return {}
        if result.outcome == "timeout" and patience_s < self._deadline_s:
            return {kernels[0].key: _GivenUp(f"kernel {kernels[0].name} takes over {patience_s:g} s to compile")}
        ended = f"the compiler ended with {result.outcome}{malformed}"
        if result.outcome == "timeout":
            limit = f"{self._deadline_s:g} s"
            ended = f"it was not compiled within {limit}: judge.deadline_s (verify: --deadline) gives it more"
        return {kernels[0].key: f"kernel {kernels[0].name}: {ended}"}

    def version(self, language: str) -> str:
        """Name and version of the compiler for a language."""
        if language == "cuda":
            return f"NVRTC {nvrtc.load().version}"
        return f"Triton {triton_version()}, " + (f"ptxas {self._assembler.version}" if self._assembler else "its ptxas")


class Forbidden(str):
    """Reason of a kernel that breaks a rule."""

    __slots__ = ()


class Misfit(str):
    """Reason of a kernel that is too large for the GPU; another autotune configuration of it may fit."""

    __slots__ = ()


class _GivenUp(str):
    """Reason that holds for this caller only, so it is not cached."""

    __slots__ = ()


def _batches(kernels: Sequence[Kernel], free_cores: int) -> Iterator[Sequence[Kernel]]:
    """Group kernels by child so that all free cores have work. CUDA C++ kernels, which need their own guards, are
    alone.

    Starting a child takes about a third of the time of compiling a small kernel.
    """
    lowered = [kernel for kernel in kernels if kernel.language != "cuda"]
    size = max(1, -(-len(lowered) // free_cores))
    for first in range(0, len(lowered), size):
        yield lowered[first : first + size]
    yield from ([kernel] for kernel in kernels if kernel.language == "cuda")


_OPTIONS: dict[str, range | type[bool]] = {
    "num_warps": range(1, 33), "num_stages": range(65), "num_ctas": range(1, 17), "maxnreg": range(1, 1 << 16),
    "enable_fp_fusion": bool, "enable_reflect_ftz": bool, "launch_cooperative_grid": bool, "launch_pdl": bool,
    "sched4reg": bool, "clc": bool,
}  # fmt: skip
"""Allowed options of Triton's compiler. Others name files and tools, or change the meaning of the IR."""
_ASSEMBLER = re.compile(
    r"(-O|--?opt-level[= ]|-maxrregcount[= ]|--maxrregcount[= ]|-regUsageLevel[= ]|--register-usage-level[= ])\d{1,3}"
    r"|--?allow-expensive-optimizations[= ](true|false)|--?disable-optimizer-constants"
)


def text_fault(kernel: Kernel) -> str:
    """Why a kernel's code or options are not compiled, as a sentence; empty if they are allowed."""
    if kernel.language == "cuda":
        return cuda_text_fault(kernel)
    if fault := fault_of(kernel.code, kernel.name):
        return f"kernel {kernel.name}: {fault}"
    for name, value in kernel.options:
        if not _allowed(name, value):
            return f"kernel {kernel.name}: option {name} = {str(value)[:80]} is not allowed: docs/reference/plans.md"
    return ""


def _allowed(name: str, value: Any) -> bool:
    if name == "ptx_options":
        return isinstance(value, str) and all(map(_ASSEMBLER.fullmatch, value.split()))
    allowed = _OPTIONS.get(name, range(0))
    return (
        value in allowed and not isinstance(value, bool) if isinstance(allowed, range) else isinstance(value, allowed)
    )


_FLAGS = re.compile(
    r"-D\w+(=[\w.+-]+)?|--?use_fast_math|--?maxrregcount=\d{1,3}|--?fmad=(true|false)|--?ftz=(true|false)"
    r"|--?prec-div=(true|false)|--?prec-sqrt=(true|false)|--?extra-device-vectorization|--?std=c\+\+\d\d"
)
_BLANK = r"(?:[^\S\n]|/\*(?s:.*?)\*/)*"
_INCLUDE = re.compile(rf"^(?:.*\*/)?{_BLANK}(?:#|%:){_BLANK}(?:include|include_next|embed)\b[ \t]*(.*)$", re.MULTILINE)


def cuda_text_fault(kernel: Kernel) -> str:
    """Why CUDA C++ text or options are not compiled; only CUDA's own headers and listed options are allowed."""
    options = dict(kernel.options)
    unknown = set(options) - {"num_warps", "shared_bytes", "flags"}
    if unknown or not isinstance(options.get("num_warps"), int) or not isinstance(options.get("shared_bytes", 0), int):
        return f"kernel {kernel.name}: a CUDA C++ kernel has the options num_warps, shared_bytes and flags"
    for flag in str(options.get("flags", "")).split():
        if not _FLAGS.fullmatch(flag):
            return f"kernel {kernel.name}: compiler option {flag} is not allowed; docs/reference/plans.md lists them"
    for name in _INCLUDE.findall(kernel.code.replace("\\\n", "")):
        if not re.fullmatch(r"<[\w./]+>\s*(//.*|/\*.*)?", name.strip()) or ".." in name or "</" in name:
            return f"kernel {kernel.name}: #include {name.strip()[:80]} is not allowed: only CUDA's <headers> are"
    return ""


def _binary(kernel: Kernel, answer: KernelAnswer, version: Callable[[str], str]) -> Binary | str:
    """A child's answer as a validated binary. Resources are read from the code, not from the answer."""
    metadata = answer.metadata
    if answer.cubin is None or metadata is None:
        fault = str(answer.fault)[:1500]
        reason = f"kernel {kernel.name} does not compile: {fault}"
        return Misfit(reason) if fault.startswith(("OutOfResources", "PTXASError")) else reason
    try:
        cubin = base64.b64decode(answer.cubin, validate=True)
        text = answer.ir
        if kernel.language != "cuda" and (fault := fault_of(text, kernel.name)):
            return f"kernel {kernel.name}: {fault}"
        if metadata.launch_pdl and (dependence_fault(text) or not instructions.waits_first(cubin, metadata.name)):
            return Forbidden(f"kernel {kernel.name}: {NO_WAIT}")
        used = machine_code.resources(cubin)
        if metadata.shared > MAX_SHARED:
            return Misfit(
                f"kernel {kernel.name} needs {metadata.shared} bytes of shared memory, and a block has at most "
                f"{MAX_SHARED}: use smaller tiles or fewer stages"
            )
        taken = -(-used.registers // 8) * 8  # a warp gets them in units of 8 a lane
        if 32 * metadata.num_warps * taken > MAX_REGISTERS:
            return Misfit(
                f"kernel {kernel.name} needs {used.registers} registers in each of {32 * metadata.num_warps} threads, "
                f"and a block has at most {MAX_REGISTERS}: use fewer warps or smaller tiles, or a smaller maxnreg"
            )
        if used.stack_bytes > MAX_STACK_BYTES:
            return Forbidden(
                f"kernel {kernel.name} needs {used.stack_bytes} bytes of local memory a thread, which the GPU reserves "
                f"for all threads that it holds: at most {MAX_STACK_BYTES} are allowed; use smaller arrays or tiles"
            )
        if fault := module_state.fault_of(cubin, text, f"{kernel.code}\n{kernel.options}"):
            return Forbidden(f"kernel {kernel.name}: {fault}")
        return Binary(
            key=kernel.key,
            ir=text,
            symbol=metadata.name,
            cubin=cubin,
            code_hash=machine_code.code_hash(cubin, metadata.name),
            num_warps=metadata.num_warps,
            num_ctas=metadata.num_ctas,
            shared_bytes=metadata.shared,
            static_shared_bytes=used.shared_bytes if kernel.language == "cuda" else 0,
            registers=used.registers,
            spill_bytes=used.spill_bytes,
            global_scratch_bytes=metadata.global_scratch_size or 0,
            global_scratch_align=metadata.global_scratch_align or 1,
            profile_scratch_bytes=metadata.profile_scratch_size or 0,
            profile_scratch_align=metadata.profile_scratch_align or 1,
            parameter_bytes=machine_code.parameter_bytes(cubin, metadata.name),
            cooperative=bool(metadata.launch_cooperative_grid),
            dependent=bool(metadata.launch_pdl),
            tensordesc_meta=metadata.tensordesc_meta or (),
            instructions=dict(instructions.instruction_counts(cubin)),
            loops=instructions.loops(cubin),
            compiler=version(kernel.language),
        )
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))} {e.get('input')}: {e['msg']}" for e in error.errors()[:3])
        return f"kernel {kernel.name} does not fit the GPU, or the compiler's answer is malformed: {faults}"
    except (ValueError, IndexError, OverflowError, struct.error) as error:  # of reading a hostile cubin
        return f"kernel {kernel.name}: the compiler's answer is malformed: {error}"
