"""The module of a reference's compiled kernels: as few branches as serve all cases, each generated and cleaned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.compiled.host import Host, Start
from evo_kernel.tasks.compiled.inductor import generate
from evo_kernel.tasks.compiled.kernels import Cleaned, clean
from evo_kernel.tasks.compiled.reading import read
from evo_kernel.tasks.lowering.lower import fixed_sizes, ones
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
    branches: list[tuple[Branch, list[Sequence[Any]]]] = []
    functions: dict[str, str] = {}
    waiting = sorted(cases, key=lambda case: (ones(case), -_elements(case)))
    while waiting:
        traced, text = generate(reference, waiting[0], fixed_sizes(waiting[0], cases), templates)
        branch, helpers = _branch(traced, text, allow_aten, precision == "tf32")
        served = [waiting[0], *(case for case in waiting[1:] if traced.covers(case))]
        waiting = [case for case in waiting[1:] if not any(case is other for other in served)]
        branches.append((branch, served))
        _add(functions, helpers)
    label = name or getattr(reference, "__name__", "reference")
    title = f"Kernels of {label} as torch.compile's back end generates them, cleaned."
    return render(title, branches, list(functions.values()))


def _branch(traced: Traced, text: str, allow_aten: bool, tf32: bool) -> tuple[Branch, dict[str, str]]:
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
    helpers: dict[str, str] = {}
    for kernel in cleaned.values():
        _add(helpers, kernel.helpers)
    return branch, helpers


def _add(functions: dict[str, str], more: Mapping[str, str]) -> None:
    """Functions by name; a name means one function."""
    for name, text in more.items():
        if functions.setdefault(name, text) != text:
            raise LoweringError(f"torch.compile's kernels combine by two functions of one name, {name}.")


def _launch(kernel: Cleaned, step: Start) -> LoweredLaunch:
    if len(step.args) != len(kernel.params):
        raise LoweringError(
            f"torch.compile's kernel {kernel.base} takes {len(kernel.params)} arguments and is given {len(step.args)}."
        )
    grid = kernel.grid(step.args, step.tail)
    return LoweredLaunch(f"{kernel.base}\0{kernel.text}", grid, step.args, tuple(kernel.knobs), ())


def _elements(case: Sequence[Any]) -> int:
    return sum(value.numel() for value in case if isinstance(value, torch.Tensor))
