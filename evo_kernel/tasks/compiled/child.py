"""The process in which a task's reference is traced and Inductor writes its kernels.

Inductor runs the user's reference, holds much memory, and is told that there is a GPU: all that is for a process of its
own, with a deadline. It sees no GPU, so the same text comes out on every machine with the same PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import threading

from evo_kernel.errors import EvoKernelError, LoweringError
from evo_kernel.owner import end_with_owner
from evo_kernel.tasks.interpreted import answered
from evo_kernel.tasks.task import Task, TensorSpec, describe
from evo_kernel.types import Source

DEADLINE_S = 120.0
"""Of processor time for one task; starting takes about 8, a model of a hundred operations a minute."""
MEMORY_BYTES = 24 << 30
"""Of address space, a third of which libraries map without using it."""


def compiled(task: Task, templates: bool | None = None) -> Source:
    """A first kernel for `task` from what torch.compile's back end generates for its reference. Raises LoweringError.

    `templates`: matrix products and convolutions by Inductor's Triton templates, which `ALLOW = "kernels"` needs; with
    `ALLOW = "mixed"` they stay library calls unless asked for.
    """
    wanted = task.allow != "mixed" if templates is None else templates
    said = _said(task, wanted)
    if "text" not in said:
        raise LoweringError(said["reason"])
    return Source(said["text"])


@functools.lru_cache(maxsize=64)
def _said(task: Task, templates: bool) -> dict[str, str]:
    """The child's answer; a run asks for its first kernel several times."""
    return _CHILD.ask({"task": task.spec, "templates": templates})


class _Child:
    """The process, seen from here: started when first asked, and again when it was lost. Thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a forked process starts its own
        self._lock = threading.Lock()

    def ask(self, request: dict[str, object]) -> dict[str, str]:
        """Its answer: a text, or the reason why there is none."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # reading the answer says it
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            waiting = selectors.DefaultSelector()
            waiting.register(process.stdout, selectors.EVENT_READ)
            if not answered(process.pid, DEADLINE_S, lambda: bool(waiting.select(0.5))):
                self._end()
                return {"reason": f"torch.compile's back end took more than {DEADLINE_S:g} s of processor time."}
            try:
                return json.loads(process.stdout.readline())
            except ValueError:
                self._end()
                limit = f"{MEMORY_BYTES >> 30} GB of address space are its limit"
                return {"reason": f"torch.compile's process ended without an answer; {limit}."}

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            hidden = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | hidden,
            )
            self._owner = os.getpid()
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


_CHILD = _Child()


def _made(request: dict[str, object]) -> dict[str, str]:
    from evo_kernel.tasks.compiled.module import compiled_function
    from evo_kernel.tasks.loading import load

    try:
        task = load(str(request["task"]))
        specs = (task.input_specs(case) for case in task.cases)
        cases = [[s.empty("meta") if isinstance(s, TensorSpec) else s for s in inputs] for inputs in specs]
        text = compiled_function(
            task.reference_function,
            cases,
            name=task.name,
            allow_aten=task.allow == "mixed",
            templates=bool(request["templates"]),
            precision=task.tolerance.precision,
        )
    except EvoKernelError as error:
        return {"reason": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
        return {"reason": f"torch.compile's kernels could not be cleaned: {describe(error)}."}
    return {"text": text}


def main() -> None:
    """Requests from standard input, an answer to each, until nobody asks any more. Prints of users' code go nowhere."""
    end_with_owner()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    with tempfile.TemporaryDirectory(prefix="evo-kernel-compiled-") as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        import torch

        torch.set_num_threads(1)
        for line in sys.stdin:
            answers.write(json.dumps(_made(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
