"""The process in which a task's reference is traced and Inductor writes its kernels.

Inductor runs the user's reference, holds much memory, and is told that there is a GPU: all that is for a process of its
own, with a deadline. It sees no GPU, so the same text comes out on every machine with the same PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import sysconfig
import threading
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path

import torch

from evo_kernel import user_cache
from evo_kernel.errors import EvoKernelError, LoweringError
from evo_kernel.tasks.helper_process import HelperLost, HelperProcess, answer_requests, in_a_thread
from evo_kernel.tasks.task import Task, describe, functional, without_data
from evo_kernel.types import Source, content_hash

DEADLINE_S = 120.0
"""Of processor time for one task; starting takes about 8, a model of a hundred operations a minute."""
EXACT_CASES = 4
"""A benchmark's problem with at most as many cases gets kernels for exactly their sizes."""
_PACKAGES = {"site-packages", "dist-packages"}
MEMORY_BYTES = 24 << 30
"""Of address space, a third of which libraries map without using it."""


def compiled(task: Task, templates: bool | None = None) -> Source:
    """A first kernel for `task` from what torch.compile's back end generates for its reference, with sums of products
    computed without the products. Raises LoweringError.

    `templates`: matrix products and convolutions by Inductor's Triton templates, which `ALLOW = "kernels"` needs; with
    `ALLOW = "mixed"` they stay library calls unless asked for.
    """
    libraries = task.allow == "mixed"
    templates = not libraries if templates is None else templates
    return Source(_ahead(task, templates, libraries, simplify=True).result())


def compiled_baseline(task: Task) -> Source:
    """What `torch.compile` runs unless told otherwise: products and convolutions by libraries. Raises LoweringError."""
    return Source(baseline_ahead(task).result())


def baseline_ahead(task: Task) -> Future[str]:
    """Have `compiled_baseline` made; done when that has its answer."""
    return _ahead(task, templates=False, libraries=True, simplify=False)


_CHILD = HelperProcess(f"from {__name__} import main; main()", caches=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"))
_LOCK = threading.Lock()
_ANSWERS: dict[str, Future[str]] = {}
_KEPT = 64  # answers; a run asks for the same ones several times, from several threads


def _ahead(task: Task, templates: bool, libraries: bool, simplify: bool) -> Future[str]:
    """The text, or that of an earlier run, or LoweringError with the reason why there is none."""
    choices = (templates, libraries, simplify)
    versions = [torch.__version__, version("triton"), sys.version, user_cache.code_hash(Path(__file__).parents[1])]
    key = content_hash([task.name, task.identity, *choices, *versions, *_imported_files()])
    with _LOCK:
        if (known := _ANSWERS.get(key)) is not None:
            return known
        for old in list(_ANSWERS)[: len(_ANSWERS) - _KEPT + 1]:
            del _ANSWERS[old]
        made = in_a_thread(lambda: user_cache.kept(key, "compiled", lambda: _child_text(task, *choices)))
        _ANSWERS[key] = made
    return made


def _imported_files() -> list[tuple[str, int]]:
    """Files of imported modules that are not installed, and when they were changed: a reference may depend on them.

    What a reference imports only when it is called is not among them.
    """
    library = tuple(set(sysconfig.get_paths().values()))
    files = {}
    for name, module in sys.modules.copy().items():  # another thread may import
        path = getattr(module, "__file__", None)
        ours = name.split(".")[0] in ("evo_kernel", "operators", "populations") or name.startswith("_evo_kernel_task_")
        if path and not ours and not path.startswith(library) and not _PACKAGES.intersection(Path(path).parts):
            with contextlib.suppress(OSError):
                files[path] = os.stat(path).st_mtime_ns
    return sorted(files.items())


def _child_text(task: Task, *choices: bool) -> str:
    try:
        said = _CHILD.ask((task.spec, *choices), DEADLINE_S)
    except HelperLost as lost:
        if lost.code is None:
            reason = f"torch.compile's back end took more than {DEADLINE_S:g} s of processor time."
        else:
            limit = f"{MEMORY_BYTES >> 30} GB of address space are its limit"
            reason = f"torch.compile's process ended without an answer; {limit}."
        raise LoweringError(reason) from None
    if "text" not in said:
        raise LoweringError(said["reason"])
    return said["text"]


def _made(request: tuple[str, bool, bool, bool]) -> dict[str, str]:
    from evo_kernel.tasks.compiled.module import compiled_function
    from evo_kernel.tasks.loading import load

    spec, templates, libraries, simplify = request
    try:
        task = load(spec)
        cases = [[without_data(spec) for spec in task.input_specs(case)] for case in task.cases]
        text = compiled_function(
            functional(task.reference_function, task.mutates),
            cases,
            name=task.name,
            allow_aten=libraries,
            templates=templates,
            precision=task.tolerance.precision,
            simplify=simplify,
            exact=task.is_imported and len(cases) <= EXACT_CASES,
        )
    except EvoKernelError as error:
        return {"reason": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
        return {"reason": f"torch.compile's kernels could not be cleaned: {describe(error)}."}
    return {"text": text}


def main() -> None:
    """The child."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    torch.set_num_threads(1)
    answer_requests(_made)
