"""TritonBench (thunlp, Apache-2.0) as tasks: `tritonbench:CHECKOUT/T/addmm`, `tritonbench:CHECKOUT/G/softmax_triton1`.

The check cases are the calls of a problem's test; the search and confirm cases are the sizes of its timings
(`performance_metrics/perf_T/golden_metrics`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.call_template import CallForm, Form
from evo_kernel.tasks.calls import CUT, Called
from evo_kernel.tasks.importers.checkout import Entry, allow_of, chosen, parted, read_text, remembered, task_text
from evo_kernel.tasks.interpreted import Interpreted
from evo_kernel.tasks.task import HOST_KNOWN_ELEMENTS, describe, same_values

SCHEME = "tritonbench"
CHANNELS = ("T", "G")
SEARCH_ELEMENTS = 1 << 28
"""Elements of inputs that a search case may have: 1 GiB of float32."""
CHECK_ELEMENTS = 200_000
"""Elements of inputs up to which a set of timing inputs may stand in for a missing check case."""
CHECKS = 3

_EXAMPLE = "tritonbench:TritonBench/T/addmm"


def entries(rest: str) -> list[Entry]:
    """The problems that `CHECKOUT`, `CHECKOUT/T` or `CHECKOUT/T/addmm` names, in order. Raises TaskError."""
    root, channel, problem = parted(rest, "[TG]")
    root = root.resolve()
    found = {name: _problems(root, name) for name in CHANNELS}
    found = {name: problems for name, problems in found.items() if problems}
    if not found:
        what = "it has no folder data/TritonBench_T_v1 with problems"
        raise TaskError(f"{root} is no TritonBench checkout: {what}. Name one; write for example {_EXAMPLE}.")
    return chosen(found, channel, problem, _EXAMPLE)


def _problems(root: Path, channel: str) -> list[Entry]:
    return [
        Entry(
            spec=f"{SCHEME}:{root}/{channel}/{path.stem}",
            task=f"tritonbench_{channel}_{path.stem}",
            group=channel,
            name=path.stem,
            label=f"{channel}/{path.stem}",
            title=path.stem.replace("_", " "),
            path=path,
        )
        for path in sorted((root / "data" / f"TritonBench_{channel}_v1").glob("*.py"))
    ]


def text_of(entry: Entry) -> str:
    """Its task's text. Raises TaskError."""
    return _text(entry, read_text(entry.path), timings_of(entry))


def timings_of(entry: Entry) -> str:
    """The script with the sizes that it is timed at; empty where it has none."""
    folder = entry.path.parents[2] / "performance_metrics" / f"perf_{entry.group}" / "golden_metrics"
    path = folder / f"{entry.name}_perf.py"
    return read_text(path) if path.is_file() else ""


@dataclass(frozen=True)
class ChosenCalls:
    """What a task is made of: the form, the call that shows it, the cases, and what was left out."""

    form: Form
    shown: Mapping[str, int]
    check: Sequence[Mapping[str, Any]]
    search: Sequence[Mapping[str, Any]]
    confirm: Sequence[Mapping[str, Any]]
    left: int  # calls of the test that have another form
    known: tuple[int, ...] = ()  # positions of small integers beside floating point: page tables, offsets


@remembered
def _text(entry: Entry, source: str, timings: str) -> str:
    """The task file. Finding its cases runs the test."""
    picked, called = choose(entry, source, timings)
    triton = entry.group == "G"
    draws = (called.inputs(case, torch.Generator("cpu").manual_seed(1), torch.device("cpu")) for case in picked.check)
    allow = "mixed" if triton else allow_of(called.reference, lambda: list(draws))
    seed = f"HOST_KNOWN = {list(picked.known)!r}\nSEED = {_seed(source, called)!r}\n" if triton else ""
    kinds = (("check", picked.check), ("search", picked.search), ("confirm", picked.confirm))
    cases = {kind: list(found) for kind, found in kinds if found}
    description = f"TritonBench {entry.group}: {entry.name}."
    if picked.left:
        description += f" {picked.left} calls of its test have other arguments and are not part of this task."
    imported = f"from {type(called).__module__} import {type(called).__name__} as Called"
    held = {"SOURCE": repr(source), "TIMINGS": repr(called.made_by["perf"])}
    options = {key: called.made_by[key] for key in ("call", "changed")}
    made = f"_called = Called(SOURCE, __file__, TIMINGS, **{options!r})"
    return task_text(description, imported, held, cases, allow, seed, made)


def choose(entry: Entry, source: str, timings: str) -> tuple[ChosenCalls, Called]:
    """The task's form and cases, and its function: the first whose reference gives one result for the same inputs.

    Where no form's reference does, the first form.
    """
    candidates, timings = _candidates(entry, source, timings)
    found: list[tuple[ChosenCalls, Called]] = []
    for picked in candidates:
        made = functools.partial(_kind(entry), source, str(entry.path), timings, call=dict(picked.shown))
        changed, steady = _looked(made(), picked.check)
        found.append((picked, made(changed=changed)))
        if steady:
            return found[-1]
    return found[0]


def _candidates(entry: Entry, source: str, timings: str) -> tuple[list[ChosenCalls], str]:
    """A choice of cases for each form, of most use first; timings come back empty where their script does not run."""
    timed: list[CallForm] = []
    if timings:
        try:
            timed = _kind(entry)(source, str(entry.path), timings).timed()
        except Exception:  # noqa: BLE001  the script may raise anything: then the test's own sizes must do
            timings = ""
    called = _kind(entry)(source, str(entry.path), timings)
    first, second, fault = [], [], None
    try:
        first, second = called.calls(1), called.calls(2)
    except TaskError as error:
        told = str(error) if str(entry.path) in str(error) else f"{entry.path}: {error}"
        raise TaskError(f"{told.rstrip('.')}. Leave it to its own harness.") from error
    except (Exception, SystemExit) as error:  # noqa: BLE001  the benchmark's own code may raise anything
        fault = error
    forms = {call.form.key: call for call in [*timed, *first] if call.tensors}
    tested = [call.form.key for call in first]
    at_work = [call.form.key for call in timed]
    order = sorted(forms, key=lambda key: (key not in at_work, key not in tested, -tested.count(key)))
    # A kernel follows offsets into memory wherever they lead: there integers stay as they are written.
    found = [_choice(forms[key].form, timed, first, second, shuffle=entry.group != "G") for key in order]
    if not any(found):
        why = f"its test does not run on a CPU: {describe(fault)}" if fault else "it has no call small enough to check"
        if not forms and not fault:
            why = "its test calls nothing with a tensor, so that a kernel has nothing to compute"
        raise TaskError(f"{entry.path}: {why}. Leave it to its own harness.")
    return [choice for choice in found if choice is not None], timings


def _choice(
    form: Form, timed: Sequence[CallForm], first: Sequence[CallForm], second: Sequence[CallForm], *, shuffle: bool
) -> ChosenCalls | None:
    """The cases of one form; None where none is small enough to check."""
    large = [index for index, call in enumerate(timed) if call.form.key == form.key]
    large = [index for index in large if 0 < timed[index].elements <= SEARCH_ELEMENTS]
    large.sort(key=lambda index: timed[index].elements, reverse=True)
    search = [{"name": f"timing_{index}", "perf": index} for index in large]
    check = _checks(form, first, second, shuffle=shuffle)
    if not check or any("written" in case for case in check):  # fresh values are better than written ones
        small = [case for case in search if timed[case["perf"]].elements <= CHECK_ELEMENTS]
        check = [{**case, "name": f"small_{case['perf']}"} for case in small[-2:]] or check
    if not check:
        return None
    shown = {"perf": large[0]} if large else {"test": check[0]["test"]}
    left = sum(call.form.key != form.key for call in first if call.tensors)
    own = [{**case, "name": f"own_{case['name']}"} for case in check[:1]]
    cases = [*check, *search[:2], *own]
    used = [timed[case["perf"]] if "perf" in case else first[case["test"]] for case in cases]
    return ChosenCalls(form, shown, check, search[:1] or own, search[1:2], left, _small_integers(used))


def _small_integers(calls: Sequence[CallForm]) -> tuple[int, ...]:
    """Positions where every call has integers that the host may know; none where there is nothing else to compute."""
    columns = list(zip(*(call.tensors for call in calls), strict=True))
    if not any(column[0].is_floating_point() for column in columns):
        return ()
    return tuple(
        position
        for position, column in enumerate(columns)
        if all(not tensor.is_floating_point() and tensor.numel() <= HOST_KNOWN_ELEMENTS for tensor in column)
    )


def _checks(
    form: Form, first: Sequence[CallForm], second: Sequence[CallForm], *, shuffle: bool
) -> list[dict[str, Any]]:
    """The test's calls of this form, each shape once; what two draws have in common was written out in numbers."""
    found: list[dict[str, Any]] = []
    seen: set[Any] = set()
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one.form.key != form.key or one.elements > CHECK_ELEMENTS * 10:
            continue
        shapes = tuple((tuple(t.shape), t.dtype) for t in one.tensors)
        if shapes in seen or not all(t.numel() for t in one.tensors):
            continue
        seen.add(shapes)
        written = tuple(
            index
            for index, (a, b) in enumerate(zip(one.tensors, other.tensors, strict=True))
            if (a.is_floating_point() or (shuffle and not a.is_complex() and a.dtype != torch.bool))
            and torch.equal(a, b)
        )
        found.append({"name": f"test_{number}", "test": number} | ({"written": written} if written else {}))
    found.sort(key=lambda case: first[case["test"]].elements)
    few = [case for case in found if first[case["test"]].elements <= CHECK_ELEMENTS] or found[:1]
    return few[-CHECKS:][::-1]


def _looked(called: Called, check: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], bool]:
    """Positions of inputs that the function writes to, and whether it gives the same result twice."""
    inputs = called.inputs(check[-1], torch.Generator("cpu").manual_seed(1), torch.device("cpu"))
    try:
        (made, changed), (again, _) = called.effects(inputs), called.effects(inputs)
    except Exception:  # noqa: BLE001  the benchmark's own code may raise anything; checking the task will say it
        return (), False
    if not made:
        raise TaskError(f"{called.path}: {called.form.entry} returns no tensor. A kernel has nothing to compute.")
    return changed, all(same_values(a, b) for a, b in zip(made, again, strict=True))


def _kind(entry: Entry) -> type[Called]:
    """What runs the reference: PyTorch's functions anywhere, Triton's kernels on a GPU, or their IR on a CPU."""
    return Interpreted if entry.group == "G" else Called


def _seed(source: str, called: Called) -> str:
    """The benchmark's own kernels as a first kernel: its module, and `run`, which makes the task's one call."""
    reference = source.partition(CUT)[0]
    head = "" if "import torch" in reference else "import torch\n"  # some leave it to their tests
    names = called.names
    given = [f"{name}_given" if index in called.changed else name for index, name in enumerate(names)]
    lines = [f"    {given[index]} = {names[index]}.clone()" for index in called.changed]
    returned = "".join(f", {given[index]}" for index in called.changed)
    return (
        f"{head}{reference.rstrip()}\n\n\n"
        "def _tensors(made, *written):\n"
        "    made = made if isinstance(made, (tuple, list)) else [made]\n"
        "    flat = [part for part in made if hasattr(part, 'stride')]\n"
        "    flat += [part for part in written if not any(part is other for other in flat)]\n"
        "    return flat[0] if len(flat) == 1 else tuple(flat)\n\n\n"
        f"def run({', '.join(names)}):\n"
        + "".join(f"{line}\n" for line in lines)
        + f"    return _tensors({called.form.written(given)}{returned})\n"
    )
