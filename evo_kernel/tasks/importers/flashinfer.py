"""FlashInfer-Bench (Apache-2.0) as tasks: `flashinfer:DATASET/gemm_n4096_k4096`, from a local data set.

Search and confirm cases are workloads; check cases have small variable axes where all inputs may be drawn at any size,
else they are the smallest workloads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.definitions import Definition, dtype_of
from evo_kernel.tasks.importers.checkout import Entry, allow_of, existing, read_text, remembered, task_text
from evo_kernel.tasks.task import describe, did_you_mean

SCHEME = "flashinfer"
SEARCH_ELEMENTS = 1 << 28
CHECK_ELEMENTS = 1 << 25
"""Elements up to which a workload may be checked on any machine."""
SMALL = (5, 3, 7, 2)
"""Variable axes of check cases, one after the other."""
NARROW = (128, 64)
"""What constant axes above it are tried at in check cases; most references insist on their own."""

_EXAMPLE = "flashinfer:flashinfer-trace/gemm_n4096_k4096"


def entries(rest: str) -> list[Entry]:
    """The definitions that `DATASET`, `DATASET/OP_TYPE` or `DATASET/NAME` names. Raises TaskError."""
    root, wanted = Path(rest or ".").expanduser(), ""
    if not (root / "definitions").is_dir() and (root.parent / "definitions").is_dir():
        root, wanted = root.parent, root.name.removesuffix(".json")
    root = existing(str(root)).resolve()
    paths = sorted((root / "definitions").rglob("*.json"))
    if not paths:
        what = "it has no folder definitions with *.json"
        raise TaskError(f"{root} is no FlashInfer-Bench data set: {what}. Name one; write for example {_EXAMPLE}.")
    found = [(path, definition_at(path)) for path in paths if wanted in ("", path.stem, path.parent.name)]
    if not found:
        hint = did_you_mean(wanted, [path.stem for path in paths])
        lists = f"`evo-kernel tasks import {SCHEME}:{root}` lists them."
        raise TaskError(f"{root} has no definition {wanted!r}.{hint} {lists}")
    return [
        Entry(
            spec=f"{SCHEME}:{root}/{definition['name']}",
            task="flashinfer_" + re.sub(r"\W", "_", str(definition["name"])),
            group=str(definition["op_type"]),
            name=str(definition["name"]),
            label=str(definition["name"]),
            title=str(definition["op_type"]),
            path=path,
        )
        for path, definition in found
    ]


def definition_at(path: Path) -> dict[str, Any]:
    """A definition, looked at as far as a task needs it. Raises TaskError."""
    try:
        found = json.loads(read_text(path, "data set"))
        _ = [found[key] for key in ("name", "op_type", "reference")]
        for tensor in (*found["inputs"].values(), *found["outputs"].values()):
            _ = tensor["dtype"], [found["axes"][axis]["type"] for axis in tensor["shape"] or ()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{path} is no definition ({describe(error)}). Check the data set out again.") from error
    return found


def text_of(entry: Entry) -> str:
    """Its task's text. Raises TaskError."""
    root = entry.spec.removeprefix(f"{SCHEME}:").removesuffix(f"/{entry.name}")
    found = sorted((Path(root) / "workloads").rglob(f"{entry.name}.jsonl"))
    if not found:
        raise TaskError(f"{root}/workloads has no {entry.name}.jsonl, so that no sizes are known. Add it.")
    return _text(entry, root, json.dumps(definition_at(entry.path)), read_text(found[0], "data set"))


@remembered
def _text(entry: Entry, root: str, definition_text: str, lines: str) -> str:
    definition = json.loads(definition_text)
    _refuse(entry, definition)
    workloads, own = _parsed(entry, definition["inputs"], lines)
    made = Definition(definition, workloads, root, str(entry.path))
    cases = _cases(made, own)
    used = {case["workload"] for kind in cases.values() for case in kind}
    workloads = {name: inputs for name, inputs in workloads.items() if name in used}
    known = made.host_known([case for kind in cases.values() for case in kind])
    allow = _allow(made, cases["check"])
    told = definition.get("description") or definition["op_type"]
    description = f"FlashInfer-Bench {definition['name']}: {' '.join(str(told).split())}"
    imported = "from evo_kernel.tasks.definitions import Definition"
    held = {"DEFINITION": repr(definition), "WORKLOADS": repr(workloads)}
    text = f"_definition = Definition(DEFINITION, WORKLOADS, {root!r}, __file__)"
    return task_text(description, imported, held, cases, allow, f"HOST_KNOWN = {known!r}\n", text)


def _refuse(entry: Entry, definition: Mapping[str, Any]) -> None:
    for tensor in (*definition["inputs"].values(), *definition["outputs"].values()):
        dtype_of(tensor["dtype"], str(entry.path))
    if definition["op_type"] == "sampling":
        raise TaskError(f"{entry.path} draws samples: one right output is not another. Leave it to its own harness.")
    try:
        parse_module(definition["reference"])
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"{entry.path}: its reference is not valid Python: {describe(error)}. Mend it.") from error


def _parsed(entry: Entry, names: Iterable[str], lines: str) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Of the workloads: identifier → its inputs, and a case each. Raises TaskError."""
    inputs, cases = {}, []
    for number, line in enumerate(lines.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            workload = record.get("workload") or record
            given = {name: dict(workload["inputs"][name]) for name in names}
            _ = [one["type"] for one in given.values()]
            identifier = str(workload["uuid"])
            cases.append({"name": identifier[:8], "workload": identifier, **workload["axes"]})
            inputs[identifier] = given
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"line {number} of its workloads is none ({describe(error)})"
            raise TaskError(f"{entry.path}: {what}. Check the data set out again.") from error
    if not inputs:
        raise TaskError(f"{entry.path}: its workloads are empty, so that no sizes are known. Check it out again.")
    return inputs, cases


def _cases(made: Definition, own: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Two workloads to search at, two others to confirm, and small cases to check."""
    unique = list({repr([v for k, v in one.items() if k not in ("name", "workload")]): one for one in own}.values())
    fitting = sorted((one for one in unique if made.elements(one) <= SEARCH_ELEMENTS), key=made.elements)
    if not fitting:
        least = min(made.elements(one) for one in own)
        raise TaskError(
            f"{made.path}: its smallest workload has {least:,} elements, too many to search at. Add another."
        )
    search = [fitting[-1]] + ([fitting[len(fitting) // 2]] if len(fitting) > 3 else [])
    confirm = [one for one in (fitting[3 * len(fitting) // 4], fitting[len(fitting) // 4]) if one not in search]
    cases = {"check": _checks(made, fitting), "search": search, "confirm": confirm}
    return {kind: found for kind, found in cases.items() if found}


def _checks(made: Definition, fitting: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    free = not made.definition.get("constraints") and all(
        one["type"] != "safetensors" for one in made.workloads[fitting[0]["workload"]].values()
    )
    axes = made.definition["axes"]
    if free:
        variable = [name for name, axis in axes.items() if axis["type"] == "var"]
        small = {name: SMALL[index % len(SMALL)] for index, name in enumerate(variable)}
        base = {"name": "small", "workload": fitting[0]["workload"], **small}
        constant = {name: axis["value"] for name, axis in axes.items() if axis["type"] == "const"}
        for most in (*NARROW, None):
            narrow = {} if most is None else {name: most for name, value in constant.items() if value > most}
            if _runs(made, base | narrow):
                return [base | narrow]
    least = {**fitting[0], "name": f"small_{fitting[0]['name']}"}
    if made.elements(least) > CHECK_ELEMENTS:
        raise TaskError(f"{made.path}: its smallest workload is too large to check on a CPU. Add a smaller one.")
    return [least]


def _runs(made: Definition, case: Mapping[str, Any]) -> bool:
    """Whether the reference runs at these sizes, with outputs of the shapes that the definition says."""
    try:
        with FakeTensorMode():
            values = made.inputs(case, torch.Generator("cpu"), torch.device("cpu"))
            outputs = made.reference()(*values)
    except Exception:  # noqa: BLE001  the definition's own code may raise anything; an assertion, most often
        return False
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [made.shape(tensor, case) for tensor in made.definition["outputs"].values()]
    return [tuple(part.shape) for part in parts] == [shape or () for shape in wanted]


def _allow(made: Definition, checks: Sequence[Mapping[str, Any]]) -> str:
    def inputs() -> list[tuple[Any, ...]]:
        with FakeTensorMode():
            return [made.inputs(case, torch.Generator("cpu"), torch.device("cpu")) for case in checks]

    return allow_of(made.reference, inputs)
