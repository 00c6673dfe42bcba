"""The module of a reference's compiled kernels: as few branches as serve all cases, each generated and cleaned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.compiled.host import Host, Start
from evo_kernel.tasks.compiled.inductor import generate
from evo_kernel.tasks.compiled.kernels import Cleaned, clean
from evo_kernel.tasks.compiled.reading import read
from evo_kernel.tasks.lowering.lower import branches, ones
from evo_kernel.tasks.lowering.module import Branch, LoweredLaunch
from evo_kernel.tasks.lowering.render import render
from evo_kernel.tasks.lowering.trace import Traced


def compiled_function(
    reference: Callable[..., Any],
    cases: Sequence[Sequence[Any]],
    *,
    name: str = "",
    allow_aten: bool = False,
    templates: bool = True,
    precision: str = "ieee",
) -> str:
    """The text of a module that computes `reference` for inputs like each of `cases` (tensors, meta ones welcome).

    `templates`: matrix products and convolutions are Inductor's Triton templates, else calls of libraries. Raises
    LoweringError where Inductor leaves operations to libraries and `allow_aten` is false, or writes what has no plain
    form yet.
    """
    modules: list[tuple[Branch, list[Sequence[Any]]]] = []
    functions: dict[str, str] = {}
    ordered = sorted(cases, key=lambda case: (ones(case), -sum(x.numel() for x in case if isinstance(x, torch.Tensor))))
    for (traced, text), served in branches(ordered, lambda first, fixed: generate(reference, first, fixed, templates)):
        modules.append((_branch(traced, text, allow_aten, precision == "tf32", functions), served))
    label = name or getattr(reference, "__name__", "reference")
    title = f"Kernels of {label} as torch.compile's back end generates them, cleaned."
    return render(title, modules, list(functions.values()))


def _branch(traced: Traced, text: str, allow_aten: bool, tf32: bool, functions: dict[str, str]) -> Branch:
    """What is printed of a trace; the functions that its kernels call are added to `functions`."""
    found = read(text)
    host = Host(traced, found)
    if host.library and not allow_aten:
        raise LoweringError(
            f"torch.compile leaves {', '.join(dict.fromkeys(host.library))} to a library. Give the task a first kernel "
            'of your own (SEED = "kernel.py"), or set ALLOW = "mixed" to keep such operations as PyTorch calls.'
        )
    cleaned = {
        name: clean(raw, [step.tail for step in host.steps if isinstance(step, Start) and step.kernel == name], tf32)
        for name, raw in found.kernels.items()
    }
    branch = Branch(traced, used=host.used & set(traced.size_names))
    for step in host.steps:
        if isinstance(step, Start):
            kernel = cleaned[step.kernel]
            launch = _launch(kernel, step)
            branch.defaults.setdefault(launch.kernel, dict(kernel.knobs))
            branch.lines.append(launch)
        else:
            branch.lines.append(step)
    for name, helper in (item for kernel in cleaned.values() for item in kernel.helpers.items()):
        if functions.setdefault(name, helper) != helper:
            raise LoweringError(f"torch.compile's kernels combine by two functions of one name, {name}.")
    return branch


def _launch(kernel: Cleaned, step: Start) -> LoweredLaunch:
    if len(step.args) != len(kernel.params):
        raise LoweringError(
            f"torch.compile's kernel {kernel.base} takes {len(kernel.params)} arguments and is given {len(step.args)}."
        )
    grid = kernel.grid(step.args, step.tail)
    return LoweredLaunch(f"{kernel.base}\0{kernel.text}", grid, step.args, tuple(kernel.knobs))
