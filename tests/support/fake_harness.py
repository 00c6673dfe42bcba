"""A benchmark's harness of our own making: the functions of KernelBench's package that this project calls."""

from __future__ import annotations

from pathlib import Path

EVAL = """
import importlib.util
import tempfile
import types
from litellm import completion  # a client of language models, as the real package imports them

import torch

from . import timing


class Result:
    def __init__(self, **told):
        self.compiled, self.correctness, self.metadata, self.runtime, self.ref_runtime = True, False, {}, -1.0, -1.0
        self.__dict__.update(told)


def set_seed(seed):
    torch.manual_seed(seed)


def _process_input_tensor(value, device, backend="cuda", precision=torch.float32):
    return value.to(device=device, dtype=precision) if isinstance(value, torch.Tensor) else value


def load_original_model_and_inputs(text, context):
    exec(compile(text, "<problem>", "exec"), context)
    return context["Model"], context["get_init_inputs"], context["get_inputs"]


def load_custom_model_with_tempfile(text, entry_point="ModelNew"):
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location("temp_module", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, entry_point), file


def run_and_check_correctness(model, new, get_inputs, metadata, num_correct_trials, seed, device, backend):
    passed = 0
    for trial in range(num_correct_trials):
        set_seed(seed + trial)
        inputs = [_process_input_tensor(value, device) for value in get_inputs()]
        passed += torch.allclose(model(*inputs), new(*inputs), atol=1e-4, rtol=1e-4)
    if passed < num_correct_trials:
        metadata["correctness_issue"] = "Output mismatch"
    return Result(correctness=passed == num_correct_trials, metadata=metadata)
"""

CHECKER = """
def validate_kernel_static(text, backend, precision):
    return "try:" not in text, ["Contains 'try:'"], []
"""

_LEAVES_A_PROCESS = """

def set_seed(seed):
    import os, pathlib, subprocess, time
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    path = pathlib.Path(__file__).with_name("left")
    path.with_suffix(".tmp").write_text(str(child.pid))
    path.with_suffix(".tmp").rename(path)
"""

CRASHES = EVAL + _LEAVES_A_PROCESS + "    os._exit(7)\n"
HANGS = EVAL + _LEAVES_A_PROCESS + "    time.sleep(600)\n"


def add_harness(root: Path, text: str = EVAL) -> Path:
    """Put it into a checkout; its package's folder."""
    package = root / "src/kernelbench"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from openai import OpenAI\n")
    (package / "timing.py").write_text("")
    (package / "kernel_static_checker.py").write_text(CHECKER)
    (package / "eval.py").write_text(text)
    return package
