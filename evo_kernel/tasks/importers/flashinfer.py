"""FlashInfer-Bench (Apache-2.0) as tasks: `flashinfer:DATASET/gemm_n4096_k4096`.

Reads a local data set that the user names: `definitions/**/NAME.json`, `workloads/**/NAME.jsonl`, and the files that
workloads point to. Nothing of it is shipped. The search and confirm cases are workloads; the check cases have small
variable axes where all inputs may be drawn at any size, else they are the smallest workloads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.definitions import Definition, dtype_of
from evo_kernel.tasks.importers.checkout import allow_of, only, read_text
from evo_kernel.tasks.task import describe, did_you_mean

SCHEME = "flashinfer"
SEARCH_ELEMENTS = 1 << 28
CHECK_ELEMENTS = 1 << 25
"""Elements up to which a workload may be checked on any machine."""
SMALL = (5, 3, 7, 2)
"""Variable axes of check cases, one after the other."""
NARROW = (128, 64)
"""What constant axes above it are tried at in check cases; most references insist on their own."""

_EXAMPLE = "write for example flashinfer:flashinfer-trace/gemm_n4096_k4096"


@dataclass(frozen=True)
class FlashInferEntry:
    """One definition of a data set."""

    root: Path
    path: Path
    op_type: str
    name: str

    @property
    def spec(self) -> str:
        return f"{SCHEME}:{self.root}/{self.name}"

    @property
    def group(self) -> str:
        return self.op_type

    @property
    def label(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        return self.op_type


def entries(rest: str) -> list[FlashInferEntry]:
    """The definitions that `DATASET`, `DATASET/OP_TYPE` or `DATASET/NAME` names. Raises TaskError."""
    root, wanted = Path(rest or ".").expanduser(), ""
    if not (root / "definitions").is_dir() and (root.parent / "definitions").is_dir():
        root, wanted = root.parent, root.name.removesuffix(".json")
    if not root.is_dir():
        raise TaskError(f"There is no folder {root} (from {SCHEME}:{rest}). Name a local data set; {_EXAMPLE}.")
    paths = sorted((root / "definitions").rglob("*.json")) if (root / "definitions").is_dir() else []
    if not paths:
        what = "it has no folder definitions with *.json"
        raise TaskError(f"{root} is no FlashInfer-Bench data set: {what}. Name one; {_EXAMPLE}.")
    root = root.resolve()
    definitions = [
        (path.resolve(), definition_at(path)) for path in paths if wanted in ("", path.stem, path.parent.name)
    ]
    found = [FlashInferEntry(root, path, str(found["op_type"]), str(found["name"])) for path, found in definitions]
    if not found:
        hint = did_you_mean(wanted, [path.stem for path in paths])
        raise TaskError(f"{root} has no definition {wanted!r}.{hint} `tasks import {SCHEME}:{root} --list` lists them.")
    return found


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


def problem_of(rest: str) -> tuple[FlashInferEntry, dict[str, Any]]:
    """The one definition that `rest` names. Raises TaskError."""
    entry = only(entries(rest), f"{SCHEME}:{rest}", _EXAMPLE, "definitions")
    return entry, definition_at(entry.path)


def read(rest: str) -> tuple[str, str, Path, str]:
    """Name, spec, file and task text of the one definition that `rest` names. Raises TaskError."""
    entry, definition = problem_of(rest)
    name = "flashinfer_" + re.sub(r"\W", "_", entry.name)
    return name, entry.spec, entry.path, _text(entry, json.dumps(definition), _workloads(entry))


def _workloads(entry: FlashInferEntry) -> str:
    found = sorted((entry.root / "workloads").rglob(f"{entry.name}.jsonl"))
    if not found:
        raise TaskError(f"{entry.root}/workloads has no {entry.name}.jsonl, so that no sizes are known. Add it.")
    return read_text(found[0], "data set")


@lru_cache(maxsize=512)
def _text(entry: FlashInferEntry, definition_text: str, lines: str) -> str:
    definition = json.loads(definition_text)
    _refuse(entry, definition)
    workloads = _parsed(entry, lines)
    made = Definition(definition, workloads, str(entry.root), str(entry.path))
    cases = _cases(made, lines)
    used = {case["workload"] for kind in cases.values() for case in kind}
    workloads = {name: inputs for name, inputs in workloads.items() if name in used}
    known = made.host_known([case for kind in cases.values() for case in kind])
    allow = _allow(made, cases["check"])
    told = definition.get("description") or definition["op_type"]
    description = f"FlashInfer-Bench {definition['name']}: {' '.join(str(told).split())}"
    return (
        f"{description!r}\n\n"
        "from evo_kernel.tasks.definitions import Definition\n\n"
        f"DEFINITION = {definition!r}\n\n"
        f"WORKLOADS = {workloads!r}\n\n"
        f"CASES = {cases!r}\n"
        f"ALLOW = {allow!r}\n"
        f"HOST_KNOWN = {known!r}\n\n"
        f"_definition = Definition(DEFINITION, WORKLOADS, {str(entry.root)!r}, __file__)\n"
        "inputs = _definition.inputs\n"
        "reference = _definition.reference()\n"
    )


def _refuse(entry: FlashInferEntry, definition: Mapping[str, Any]) -> None:
    for tensor in (*definition["inputs"].values(), *definition["outputs"].values()):
        dtype_of(tensor["dtype"], str(entry.path))
    if definition["op_type"] == "sampling":
        raise TaskError(f"{entry.path} draws samples: one right output is not another. Leave it to its own harness.")
    try:
        parse_module(definition["reference"])
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"{entry.path}: its reference is not valid Python: {describe(error)}. Mend it.") from error


def _parsed(entry: FlashInferEntry, lines: str) -> dict[str, dict[str, Any]]:
    """Identifier → its inputs. Raises TaskError."""
    found = {}
    for number, line in enumerate(lines.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            workload = record.get("workload") or record
            given = {name: dict(workload["inputs"][name]) for name in json.loads(entry.path.read_text())["inputs"]}
            _ = [one["type"] for one in given.values()], dict(workload["axes"])
            found[str(workload["uuid"])] = given
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"line {number} of its workloads is none ({describe(error)})"
            raise TaskError(f"{entry.path}: {what}. Check the data set out again.") from error
    if not found:
        raise TaskError(f"{entry.path}: its workloads are empty, so that no sizes are known. Check it out again.")
    return found


def _cases(made: Definition, lines: str) -> dict[str, list[dict[str, Any]]]:
    """Two workloads to search at, two others to confirm, and small cases to check."""
    own = []
    for line in filter(str.strip, lines.splitlines()):
        workload = json.loads(line).get("workload") or json.loads(line)
        own.append({"name": str(workload["uuid"])[:8], "workload": str(workload["uuid"]), **workload["axes"]})
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
