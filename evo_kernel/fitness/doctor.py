"""What this machine can do for a search, and what to install or allow where it cannot: `evo-kernel doctor`."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton

from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.compiling.compiler import Compiler
from evo_kernel.fitness.confined.guards import landlock_abi
from evo_kernel.fitness.plan import Kernel
from evo_kernel.fitness.record.recorder import RecordCase, Recorder
from evo_kernel.types import Source

_TEXT = """import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr))
"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `advice` is empty where nothing is to be done."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def diagnose() -> list[Finding]:
    """Look at everything that a search needs; takes a few seconds. Never raises for what it finds."""
    findings = [
        Finding("python", sys.version_info >= (3, 11), platform.python_version(), ""),
        Finding("torch", True, torch.__version__),
        Finding("triton", True, triton.__version__),
        _gpu(),
    ]
    compiler = Compiler(90, 60.0)
    recorder = Recorder(compiler, 90, 60.0)
    try:
        findings += [_tried("compiler (sm_90)", lambda: _compile(compiler))]
        findings += [_tried("recorder", lambda: _record(recorder)), *_walls(recorder)]
    finally:
        recorder.close()
        compiler.close()
    return findings


def _gpu() -> Finding:
    if torch.version.cuda is None:
        detail = "this torch is a CPU build: scores are modeled (sm_90)"
        return Finding(
            "gpu", True, detail, "For measured scores install a CUDA build of torch on a machine with a GPU."
        )
    count = torch.cuda.device_count()
    if count == 0:
        return Finding("gpu", True, "no CUDA GPU is visible: scores are modeled (sm_90)", "Check nvidia-smi.")
    try:
        import cuda.bindings.driver  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return Finding("gpu", False, f"{count} GPU(s), but no cuda-bindings", "pip install 'evo-kernel[cuda]'")
    return Finding("gpu", True, f"{count} GPU(s): scores are measured")


def _tried(name: str, work: Callable[[], str]) -> Finding:
    began = time.monotonic()
    try:
        detail = work()
    except EvoKernelError as error:
        return Finding(name, False, str(error), "See the message; `pip install --force-reinstall triton` mends most.")
    return Finding(name, True, f"{detail} ({time.monotonic() - began:.1f} s)")


def _compile(compiler: Compiler) -> str:
    kernel = Kernel(name="copy_kernel", text=_TEXT, signature=(("x_ptr", "*fp32"), ("y_ptr", "*fp32")))
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


def _walls(recorder: Recorder) -> list[Finding]:
    standing = recorder.confinement.split("+")
    advice = {
        "namespaces": "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1).",
        "landlock": "Needs Linux 5.13 with Landlock among its security modules.",
        "seccomp": "Needs a kernel with seccomp filters, on x86_64 or aarch64.",
    }
    abi = f" (ABI {landlock_abi()})" if landlock_abi() else ""
    return [
        Finding(name, True, "active" + (abi if name == "landlock" else ""))
        if name in standing
        else Finding(name, False, "not active: the other walls stand", text)
        for name, text in advice.items()
    ] + [Finding("cores", True, str(os.cpu_count()))]
