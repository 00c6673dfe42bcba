"""Checks of this machine for `evo-kernel doctor`:

packages, GPUs, compilers, sandbox, with advice for what is missing.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import triton

from evo_kernel import user_cache
from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness import gpus
from evo_kernel.fitness.compile.assembler import BUNDLED, FAULTY, assembler_of, other_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.plan.launch_plan import Kernel
from evo_kernel.fitness.record.recorder import RecordCase, Recorder
from evo_kernel.fitness.runners.choose import MODELED_ARCH
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.fitness.runners.ncu import find_ncu
from evo_kernel.fitness.sandbox.guards import landlock_abi
from evo_kernel.fitness.timing.ceilings import CEILINGS, Ceilings
from evo_kernel.fitness.timing.measurement_cache import MeasurementCache, cache_key, listed
from evo_kernel.tasks.loading import load
from evo_kernel.types import Source
from evo_kernel.types.gpus import label_of, modeled_gpu

_COPY = """module {
  tt.func public @copy_kernel(%x_ptr: !tt.ptr<f32>, %y_ptr: !tt.ptr<f32>) {
    %x = tt.load %x_ptr : !tt.ptr<f32>
    tt.store %y_ptr, %x : !tt.ptr<f32>
    tt.return
  }
}
"""
_TASK = "softmax"  # any task would do to start the GPU process
_THROTTLED = 0.7  # of the table's copy rate: a GPU that reaches less is throttled, shared, or another model


@dataclass(frozen=True)
class Diagnosis:
    """Result of one check. `advice` is empty if there is nothing to do."""

    name: str
    ok: bool
    detail: str
    advice: str = ""
    needed: bool = False  # a search cannot run without it


def diagnose(device: str = "auto") -> list[Diagnosis]:
    """Check everything that a search needs on `device` (auto, cpu, cuda). Problems are results, not exceptions.

    Takes a few seconds without a GPU, about half a minute with one: its ceilings are measured.
    """
    findings = [
        Diagnosis("python", sys.version_info >= (3, 11), platform.python_version(), ""),
        Diagnosis("torch", True, torch.__version__),
        Diagnosis("triton", True, triton.__version__),
    ]
    device_found = _gpu(device)
    findings.append(device_found)
    if device_found.ok:
        findings += diagnose_cards()
    count = torch.cuda.device_count() if device_found.ok and device != "cpu" and torch.version.cuda is not None else 0
    arch, measured = diagnose_gpus(count) if count else (MODELED_ARCH, [])
    findings += measured
    if not count:
        table = Ceilings.of_target(target_for(MODELED_ARCH))
        source = f"from the table for {modeled_gpu(f'sm_{MODELED_ARCH}')}"
        findings.append(Diagnosis("ceilings", True, f"{table.text}, {source}"))
    return [*findings, _assembler(arch, bool(count)), *_children(arch), _cores(), diagnose_cache()]


def _gpu(device: str) -> Diagnosis:
    """Whether times will be measured or modeled here, and why."""
    modeled = f"scores are {label_of('modeled', f'sm_{MODELED_ARCH}')}"
    count = torch.cuda.device_count() if torch.version.cuda is not None else 0
    if device == "cpu":
        return Diagnosis("device", True, f"--device cpu: {modeled}; {count} GPU(s) left alone", needed=True)
    if torch.version.cuda is None:
        detail, advice = "this torch is a CPU build", "Install a CUDA build of torch on a machine with a GPU."
    elif count == 0:
        detail, advice = "no CUDA GPU is visible", "Check nvidia-smi and CUDA_VISIBLE_DEVICES."
    elif not _has_bindings():
        detail = f"{count} GPU(s), but no cuda-bindings"
        return Diagnosis("device", False, detail, "pip install 'evo-kernel[cuda]', or use --device cpu.", needed=True)
    else:
        return Diagnosis("device", True, f"{count} GPU(s): scores are measured", needed=True)
    if device == "cuda":
        return Diagnosis("device", False, f"--device cuda: {detail}", advice, needed=True)
    return Diagnosis("device", True, f"{detail}: {modeled}", advice, needed=True)


def diagnose_cache() -> Diagnosis:
    """What later commands will not measure again."""
    files = listed()
    cards = sum("task" not in record for record in files)
    tasks = sorted({record.get("name", "") for record in files if "task" in record})
    named = f" ({', '.join(tasks[:8])}{', ...' if len(tasks) > 8 else ''})" if tasks else ""
    detail = f"ceilings of {cards} environment(s), baselines of {len(files) - cards} task(s){named}"
    return Diagnosis(
        "remembered", True, f"{detail}, in {user_cache.folder()}; `evo-kernel doctor --clear` forgets them"
    )


def _assembler(arch: int, measured: bool) -> Diagnosis:
    """The ptxas in Triton's package, and any other that is installed."""
    own = assembler_of(BUNDLED)
    other = other_version(own)
    detail = f"ptxas {own.version}, Triton's own" + (f"; {other.version} is here too" if other else "")
    advice = (
        f"{own.version} makes wrong code of some right wgmma kernels: pip install nvidia-cuda-nvcc, then "
        "--set judge.assembler=package; scores of different assemblers do not compare."
    )
    return Diagnosis("assembler", not (measured and arch == 90 and own.version.startswith(FAULTY)), detail, advice)


def _has_bindings() -> bool:
    try:
        import cuda.bindings.driver  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def diagnose_cards() -> Iterator[Diagnosis]:
    """Every card of the machine, who else computes on it, and the profiler."""
    cards = gpus.list_gpus()
    for card in cards:
        yield Diagnosis(f"gpu {card.index}", True, card.text)
        if card.processes:
            advice = "Times on a shared GPU are unreliable: wait, or choose another with CUDA_VISIBLE_DEVICES."
            yield Diagnosis(f"gpu {card.index} is shared", False, "; ".join(card.processes), advice)
    if cards:
        yield diagnose_profiler()


def diagnose_profiler() -> Diagnosis:
    """Whether there is Nsight Compute, and whether it may read counters."""
    path, permitted = find_ncu(), gpus.counters_permitted()
    if path is None:
        advice = "Install Nsight Compute for hardware counters in `evo-kernel profile`; all else works without."
        return Diagnosis("ncu", False, "not found", advice)
    if permitted is False:
        advice = "An administrator can allow it: NVreg_RestrictProfilingToAdminUsers=0, or SYS_ADMIN for a container."
        return Diagnosis("ncu", False, f"{path}, but this user may not read the GPU's counters", advice)
    permission = "counters permitted" if permitted else "the driver does not say whether counters are permitted"
    return Diagnosis("ncu", True, f"{path}, {permission}")


def diagnose_gpus(count: int) -> tuple[int, list[Diagnosis]]:
    """Start the judge's process on every visible GPU, all at once, and measure ceilings in turn: (arch, findings)."""
    runners = [CudaRunner(load(_TASK), gpu, 60.0) for gpu in range(count)]
    advice = "The message names the cause; `nvidia-smi` tells whether the card is in order."
    findings: list[Diagnosis] = []

    def started_on(gpu: int) -> str:
        runners[gpu].start()
        return f"{runners[gpu].info['device']}, compute capability {runners[gpu].arch / 10:.1f}"

    def start(gpu: int) -> Diagnosis:
        return _attempt(f"judge on gpu {gpu}", lambda: started_on(gpu), advice)

    try:
        with ThreadPoolExecutor(count) as threads:
            started = list(threads.map(start, range(count)))
        for gpu, diagnosis in enumerate(started):
            findings.append(diagnosis)
            if diagnosis.ok:
                findings.append(_ceilings(gpu, runners[gpu]))
        return runners[0].arch, findings
    finally:
        for runner in runners:
            runner.close()


def _ceilings(gpu: int, runner: CudaRunner) -> Diagnosis:
    """A GPU's measured ceilings, compared with the table's."""
    name = f"ceilings of gpu {gpu}"
    try:
        data = runner.ceilings()
        ceilings = Ceilings.from_data(data)
        table = Ceilings.of_target(target_for(runner.arch))
    except EvoKernelError as error:
        return Diagnosis(name, False, str(error), "Shares of light cannot be computed here.", needed=True)
    if ceilings is None:
        return Diagnosis(name, False, "incomplete", "See the messages above.", needed=True)
    MeasurementCache(cache_key(runner.environment(""), runner.card)).add(CEILINGS, data)
    share = ceilings.copy_bytes_per_s / table.copy_bytes_per_s
    advice = "Is the card throttled, shared, or another model than the table's? See its clocks and temperature."
    detail = f"{ceilings.text}, measured: {share:.0%} of the table's copy rate"
    return Diagnosis(name, share >= _THROTTLED, detail, advice)


def _children(arch: int) -> list[Diagnosis]:
    """The confined processes (compiler and recorder) and their sandbox guards."""
    compiler = Compiler(arch, 60.0)
    recorder = Recorder(compiler, arch, 60.0)
    advice = "See the message; `pip install --force-reinstall triton` fixes most causes."
    try:
        compiled = _attempt(f"compiler (sm_{arch})", lambda: _compile(compiler), advice)
        return [compiled, _attempt("recorder", lambda: _record(recorder), advice), *_guards(recorder)]
    finally:
        recorder.close()
        compiler.close()


def _attempt(name: str, work: Callable[[], str], advice: str) -> Diagnosis:
    began = time.monotonic()
    try:
        detail = work()
    except EvoKernelError as error:
        return Diagnosis(name, False, str(error), advice, needed=True)
    return Diagnosis(name, True, f"{detail} ({time.monotonic() - began:.1f} s)", needed=True)


def _compile(compiler: Compiler) -> str:
    kernel = Kernel(name="copy_kernel", code=_COPY, signature=(("x_ptr", "*fp32"), ("y_ptr", "*fp32")))
    binary = compiler.compile([kernel])[0]
    if isinstance(binary, str):
        raise EvoKernelError(binary)
    return f"compiled a kernel of {len(binary.cubin)} bytes"


def _record(recorder: Recorder) -> str:
    case = RecordCase("doctor", ({"dtype": "float32", "shape": [4], "strides": [1]},))
    fault = recorder.record(Source("def run(x):\n    return x\n"), [case], [()]).fault
    if fault is not None:
        raise EvoKernelError(fault.reason)
    return f"confined by {recorder.confinement}"


def _guards(recorder: Recorder) -> list[Diagnosis]:
    active = recorder.confinement.split("+")
    advice = {
        "namespaces": "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1).",
        "landlock": "Needs Linux 5.13 with Landlock among its security modules.",
        "seccomp": "Needs a kernel with seccomp filters, on x86_64 or aarch64.",
    }
    abi = f" (ABI {landlock_abi()})" if landlock_abi() else ""
    return [
        Diagnosis(name, True, "active" + (abi if name == "landlock" else ""))
        if name in active
        else Diagnosis(name, False, "not active; the other guards are", text)
        for name, text in advice.items()
    ]


def _cores() -> Diagnosis:
    """How many recordings can run in parallel: each is one process with one thread."""
    cores = gpus.usable_cores()
    detail = f"{cores}: so many recordings and compilations run in parallel; keep them busy with --set width={cores}"
    return Diagnosis("cores", True, detail)
