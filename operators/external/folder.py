"""What lies in an agent's folder beside the workbench's own files: a README that is enough alone, the lineage, notes,
and commands."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from evo_kernel.types import Brief, ScoredCandidate
from operators.external.brief import brief_text, limits_text
from operators.knowledge.base import KnowledgeBase
from operators.workbench.formatting import version_line
from operators.workbench.judge_tools import Allowed
from operators.workbench.protocols import WorkbenchLineage
from operators.workbench.tool import WorkTool

WITH_SHELL = ("list_files", "read_file", "search_files", "write_file", "edit_file")
"""Tools that are no commands: whoever runs commands has better ones."""
VERSIONS = 12  # of the lineage as files
OWN = ".evo"
DESK = "desk"

README = """# Make this GPU kernel faster

`kernel.py` in this folder is a GPU kernel that is correct: {start}. Write a faster one, and hand it in with
`./submit`. Only what you submit counts, and only once it is committed: correct on every case, hidden ones included,
surely faster than the version to beat, {beat}, and on no shape, hidden ones included, more than {regress:.0%} slower.

You have {minutes:g} minutes, and {limits}.

## How to work
1. Read this file, `task/task.md`, `task/reference.py` and `kernel.py`.
2. Change `kernel.py` (or write another file in this folder).
3. `./probe kernel.py` compiles it and checks it on small inputs: seconds. Repair what it says.
4. `./evaluate kernel.py --idea "what this tries"` also tunes and times it, and says what the gate would say.
5. `./submit kernel.py --strategy SHORT-NAME --idea "what this does"` hands it in. If it is refused you are told why: go
   on. If it is committed, your work is done: stop.

Run these commands in this folder, one at a time; each waits for its answer (up to a minute or two) and prints it. The
exit code is 0 when the command was carried out, also where a kernel is wrong (for `./submit`: when it was committed), 1
when not (the text says why), 2 for wrong options, 3 when the attempt is over. `./COMMAND --help` shows every option.

| command | what it does |
| --- | --- |
{commands}

`versions/` holds the best versions as files, `docs/` the notes on kernels. `./note "TEXT" --evidence E4.1:0` leaves a
finding for later attempts.

A note cites what it rests on: the name of an evaluation or version (`E4.1`, `C2`) and, behind a colon, the number that
its answer calls "samples a case" (0 where times are modeled).

Hidden shapes may be odd, or fill no block. A branch of `run` that no shown shape takes is not tuned: give its knobs
values that are good already.

There may be no GPU here, and no torch: do not run the kernel yourself, ask `./probe`. Do not look for the judge or the
inputs: sources that do anything but compute are refused.

"""


def furnish(
    folder: Path,
    brief: Brief,
    tools: Mapping[str, WorkTool],
    allowed: Allowed,
    minutes: float,
    lineage: WorkbenchLineage | None,
    knowledge: KnowledgeBase | None,
    elsewhere: str = "",
    regress: float = 0.05,
) -> Path:
    """Write it all; the path at which the desk is to answer. `regress`: see workbench.protocols.Bench."""
    own = folder / OWN
    own.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("client.py"), own / "client.py")
    commands = {name: tool for name, tool in tools.items() if name not in WITH_SHELL}
    told = {name: {"description": one.description, "parameters": one.parameters} for name, one in commands.items()}
    (own / "tools.json").write_text(json.dumps(told), encoding="utf-8")
    for name in commands:
        _executable(folder / name, f'exec {shlex.quote(sys.executable)} -I "$here/{OWN}/client.py" {name} "$@"')
    text = README.format(
        minutes=minutes, regress=regress, limits=limits_text(allowed), start=_scored(brief.parent),
        commands="\n".join(f"| `./{name}` | {tool.description} |" for name, tool in commands.items()),
        beat=_scored(lineage.best() if lineage is not None else None, "the best one known"),
    )  # fmt: skip
    (folder / "README.md").write_text(text + brief_text(brief, knowledge, elsewhere), encoding="utf-8")
    if lineage is not None:
        _write_lineage(folder / "versions", lineage)
    if knowledge is not None:
        notes = folder / "docs"
        notes.mkdir(exist_ok=True)
        for note in files("operators.knowledge").joinpath("notes").iterdir():
            (notes / note.name).write_text(note.read_text(encoding="utf-8"), encoding="utf-8")
    return own / DESK


def environment_for(folder: Path, pass_env: Mapping[str, str]) -> dict[str, str]:
    """A clean one: what is needed to find programs, a home and a scratch folder of its own, what was asked for."""
    home, scratch = folder / ".home", folder / ".tmp"
    for place in (home, scratch):
        place.mkdir(mode=0o700, exist_ok=True)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "EVO_KERNEL_WORKSPACE": str(folder),
        **pass_env,
    }


def _write_lineage(folder: Path, lineage: WorkbenchLineage) -> None:
    folder.mkdir(exist_ok=True)
    best = lineage.versions(VERSIONS, "best")
    lines = ["# The best versions; each is a file here. A score is baseline ÷ kernel: larger is faster.", ""]
    for one in best:
        (folder / f"C{one.number}.py").write_text(lineage.version(one.number).source.text, encoding="utf-8")
        lines.append(f"- {version_line(one)}")
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _scored(version: ScoredCandidate | None, unknown: str = "not judged yet") -> str:
    if version is None:
        return unknown
    score = version.evaluation.score if version.evaluation is not None else None
    return f"version C{version.candidate}, " + (f"score {score:.3f}" if score is not None else "not scored")


def _executable(path: Path, line: str) -> None:
    path.write_text(f'#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd) || exit 3\n{line}\n', encoding="utf-8")
    os.chmod(path, 0o755)
