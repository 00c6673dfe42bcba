"""What TritonBench's harness needs of a problem beside a kernel: see evo_kernel/export/tritonbench.py."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.call_template import Returned, told_in_a_form
from evo_kernel.tasks.calls import CUT
from evo_kernel.tasks.importers.tritonbench import TritonBenchEntry, choose, problem_of, timings_of
from evo_kernel.tasks.task import describe


@dataclass(frozen=True)
class Solved:
    """What a solution of one problem is written around."""

    name: str
    entry: str
    reference: str
    form: tuple[str | None, ...]
    test: str
    instruction: str
    label: str
    returned: Returned
    left: int


def solved(rest: str) -> Solved:
    """What the harness needs beside a kernel. Raises TaskError."""
    entry, source = problem_of(rest)
    chosen, called, _, _ = choose(entry, source, timings_of(entry))
    inputs = called.inputs(chosen.check[-1], torch.Generator("cpu").manual_seed(1), torch.device("cpu"))
    try:
        returned = called.returned(inputs)
    except (Exception, SystemExit) as error:  # the benchmark's own code may raise anything
        told = str(error) if str(entry.path) in str(error) else f"{entry.path}: {describe(error)}"
        raise TaskError(f"{told.rstrip('.')}. Write its solution by hand.") from error
    form = chosen.form
    leaves = tuple(
        None if tensor else told_in_a_form(leaf) for leaf, tensor in zip(form.leaves, form.tensors, strict=True)
    )
    reference, test = source.split(CUT)
    instruction, label = _listed(entry)
    return Solved(entry.name, form.entry, reference, leaves, test, instruction, label, returned, chosen.left)


def _listed(entry: TritonBenchEntry) -> tuple[str, str]:
    """What its first step finds the problem by: a description between two phrases (T), the benchmark's own code (G).

    Empty where none is listed.
    """
    for catalogue in entry.path.parents[1].glob(f"TritonBench_{entry.channel}_v1.json*"):
        try:
            listed = json.loads(catalogue.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for item in listed:
            if entry.path.name in (item.get("file"), f"{item.get('name')}.py"):
                functional, wrapper = "Functional Description: ", "Wrapper Entry Information:"
                told = f"{functional}{item.get('description', '')}\n{wrapper}{item.get('func_inputs', '')}"
                return (told, "") if entry.channel == "T" else ("", item.get("output", ""))
    return "", ""
