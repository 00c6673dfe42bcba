"""README of an exported package: how to use it, what was judged, how to check it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def readme(
    name: str, operator: str, manifest: Mapping[str, Any], provenance: Sequence[Mapping[str, Any]], home: str = ""
) -> str:
    """Markdown. `home`: where the files lie in a repository for the Hub; empty for a package."""
    arguments = ", ".join(manifest["names"])
    lines = [
        f"# {name}",
        *[line for one in provenance for line in _judged(one)],
        "## Use it",
        "```python",
        *_import(name, operator, arguments, bool(home)),
        "```",
        f"`{operator}` is an operator of PyTorch (`torch.ops.{manifest['namespace']}.{manifest['op']}`):",
        "`torch.compile` and `torch.export` take it as one node. " + _gradients(manifest),
        "",
        "A call goes to a kernel where that was judged on inputs of this dtype, these sizes and strides, and to the",
        "reference (PyTorch) anywhere else; the first time, a warning says why, and after `strict()` that raises.",
        f"`chosen({arguments})` tells where a call goes. What runs are the launches that were recorded and judged, as",
        "machine code; the sources are there to be read. Judged are:",
        "",
        *[line for group in _groups(manifest) for line in _cases(group)],
        *_unmeasured(manifest),
        "## Check it",
        "| command | says |",
        "| --- | --- |",
        *([] if home else _own_commands(name)),
        *[f"| `{command}` | {says} |" for command, says in _commands(home or name, provenance)],
        "",
        f"{home or name}/provenance.json holds the lineage with every diff, the environment, samples and intervals of",
        "all measurements, and the plans' hashes. LICENSE-NOTE.md says whose this is.",
    ]
    return "\n".join(lines) + "\n"


def _import(name: str, operator: str, arguments: str, hub: bool) -> list[str]:
    if hub:
        loaded = f'kernel = get_kernel("YOU/{name}")  # as you named the repository'
        return ["from kernels import get_kernel", "", loaded, f"made = kernel.{operator}({arguments})"]
    return [f"from {name} import {operator}", "", f"made = {operator}({arguments})"]


def _own_commands(name: str) -> list[str]:
    return [
        f"| `python -m {name}.verify` | are the files those exported, and do the kernels compute the reference here |",
        f"| `python -m {name}.bench` | times on your GPU, against the reference as it is and compiled |",
        "| `python -m unittest discover tests` | the operator: compiled, exported, differentiated, out of range |",
    ]


def _judged(one: Mapping[str, Any]) -> list[str]:
    evaluation, label = one["evaluation"], one["evaluation"]["environment"]["label"]
    where = "hidden cases" if one["hidden"] else "the search cases with fresh seeds"
    path = " → ".join(step["strategy"] for step in one["path"])
    survival = one["survival"]
    return [
        f"`{one['kernel']}` is candidate {one['candidate']} of a search for {one['task']}. Score "
        f"{evaluation['score']:.3f}, {label}; {'confirmed' if one['confirmed'] else 'NOT confirmed'} on {where}.",
        *([f"{survival[0].upper()}{survival[1:]}."] if survival else []),
        *([] if one["plans_are_the_judged_ones"] else [
            "Exported with another version of Triton than it was judged with: its plans could not be compared."]),
        "",
        f"| case | µs, {label} | baselines µs | speed-up |",
        "| --- | --- | --- | --- |",
        *[
            f"| {case['case']} | {case['us']:.1f} | "
            + ", ".join(f"{name} {us:.1f}" for name, us in case["baselines_us"].items())
            + f" | {case['speedup']:.2f} |"
            for case in evaluation["cases"]
        ],
        "",
        f"Path: {path}",
        "",
    ]  # fmt: skip


def _gradients(manifest: Mapping[str, Any]) -> str:
    named = ", ".join(manifest["names"][place] for place in manifest["differentiable"])
    if not named:
        return "It has no gradients: its reference cannot be differentiated."
    if manifest["backward"] is not None:
        return f"Gradients of {named} come from kernels, too, where those were judged; else from the reference."
    return f"Gradients of {named} are the reference's, by autograd."


def _groups(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*manifest["judged"], *(manifest["backward"]["judged"] if manifest["backward"] is not None else [])]


def _cases(group: Mapping[str, Any]) -> list[str]:
    major, minor = divmod(group["target"], 10)
    names = group["names"]
    return [
        f"compute capability {major}.{minor}, {group['environment']}:",
        "",
        f"| case | {' | '.join(names)} | kernel |",
        "| --- " * (len(names) + 2) + "|",
        *[
            f"| {case['name']} | {' | '.join(_input(spec) for spec in case['inputs'])} | {case['kernel']} |"
            for case in group["cases"]
        ],
        "",
    ]


def _input(spec: Mapping[str, Any]) -> str:
    if "dtype" not in spec:
        return str(spec["value"])
    known = ", with its values" if "host" in spec else ""
    return f"{spec['dtype']} {' × '.join(map(str, spec['shape'])) or 'one number'}{known}"


def _unmeasured(manifest: Mapping[str, Any]) -> list[str]:
    if not manifest["not_executed"]:
        return []
    return [
        f"Not executed whole when they were judged, so not among these: {', '.join(manifest['not_executed'])}.",
        "Without a GPU large cases are compared in part only; search again on one, from this result (`evo-kernel run",
        "TASK --start-from POPULATION`), and export that.",
        "",
    ]


def _commands(home: str, provenance: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What needs evo-kernel."""
    found = []
    for one in provenance:
        task = f"--task {home}/tasks/{one['task_folder']}"
        found.append((f"evo-kernel verify {home}/sources/{one['kernel']}.txt {task} --confirm", "the judge's verdict"))
        for kind, says in (("check", "is checked on any machine"), ("search", "is timed; without a GPU, modeled")):
            plan = next((p for p in one["plans"] if p["kind"] == kind), None)
            if plan is not None:
                found.append(
                    (f"evo-kernel replay {home}/plans/{plan['file']} {task}", f"plain data, no author's code: {says}")
                )
    return found
