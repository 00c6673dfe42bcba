"""A champion as a folder: its source with the chosen knobs written in, its plans, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.types import Source


@dataclass(frozen=True)
class Champion:
    """What is exported."""

    task: str
    task_files: Mapping[str, str]  # task.py and what it names, by path beside it
    candidate: int
    confirmed: bool
    survival: str  # how much of the claimed gain its confirmation still found, as a sentence; empty if nothing is known
    hidden: bool  # whether the task has confirm cases of its own, or confirms on the search cases
    source: Source  # with the chosen knobs written in
    plans: Mapping[str, str]  # search case → plan file text
    check_plans: Mapping[str, str]  # check case → plan file text: small enough to be checked on any machine
    provenance: Mapping[str, Any]


def write_champion(champion: Champion, folder: Path) -> list[Path]:
    """Write the folder. Refuses one that holds other things. Returns what was written."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        f"{champion.task}.py": champion.source.text,
        **champion.task_files,
        "provenance.json": json.dumps(champion.provenance, indent=1) + "\n",
        "README.md": _readme(champion),
        **{f"{case}.plan": text for case, text in ({**champion.plans, **champion.check_plans}).items()},
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _readme(champion: Champion) -> str:
    evaluation = champion.provenance["evaluation"]
    rows = [
        f"| {case['case']} | {case['us']:.1f} | "
        + ", ".join(f"{name} {us:.1f}" for name, us in case["baselines_us"].items())
        + f" | {case['speedup']:.2f} |"
        for case in evaluation["cases"]
    ]
    path = " → ".join(step["strategy"] for step in champion.provenance["path"])
    lines = [
        f"# {champion.task}: candidate {champion.candidate}",
        f"Score {evaluation['score']:.3f}, {evaluation['environment']['label']}; "
        + f"{'confirmed' if champion.confirmed else 'NOT confirmed'} on {_where_confirmed(champion)}.",
        *([f"{champion.survival[0].upper()}{champion.survival[1:]}."] if champion.survival else []),
        "",
        f"| case | µs, {evaluation['environment']['label']} | baselines µs | speed-up |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        f"Path: {path}",
        "",
        "Check it again, without trusting this folder's numbers:",
        "",
        f"    evo-kernel verify {champion.task}.py --task task.py --confirm",
        "",
        "Check its plans alone, on any machine: plain data, of which no Python of the kernel's author runs.",
        "",
        *(f"    evo-kernel replay {case}.plan --task task.py" for case in champion.check_plans),
        "",
        "Time its plans at full size. On a GPU their outputs are checked too; without one the time is modeled and the",
        "answer is `timed`: sizes of a search case are too large to execute there.",
        "",
        *(f"    evo-kernel replay {case}.plan --task task.py" for case in champion.plans),
        "",
        "Use it: `from " + champion.task + " import run`; the inputs are those of `reference` in task.py.",
        "provenance.json holds the lineage with every diff, the environment and all measurements.",
    ]
    return "\n".join(lines) + "\n"


def _where_confirmed(champion: Champion) -> str:
    return "hidden cases" if champion.hidden else "the search cases with fresh seeds"
