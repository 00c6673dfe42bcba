"""Judges published Triton kernels, searches from each, and writes a page of the results.

python -m benchmarks.audit CHECKOUTS [--only NAME,NAME] [--seconds 60] [--device cuda]   # goes on where it stopped
python -m benchmarks.audit --page

benchmarks/published.toml lists projects with their commits, and kernels: the call that is judged, inputs, a reference
in plain PyTorch. CHECKOUTS holds a folder OWNER+NAME of each project at its commit (`git clone`, `git checkout`).
A line of benchmarks/published.jsonl is one kernel, judged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIST, RESULTS, PAGE = HERE / "published.toml", HERE / "published.jsonl", HERE.parent / "docs" / "results" / "audit.md"
LATE_S = 300.0  # beyond what a command was given
TASK = '''"""{name} of {project}."""

import torch
import torch.nn.functional as F

CASES = {{"check": {check}, "search": {search}}}
{settings}


def inputs(case, generator, device):
    def normal(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    def integers(limit, *shape):
        return torch.randint(0, limit, shape, generator=generator, device=device)

    {sizes} = case.values()
    return ({inputs},)


def reference({arguments}):
    {reference}
'''


def files_of(kernel: dict[str, Any], project: dict[str, Any], checkout: Path, folder: Path) -> tuple[Path, Path]:
    """The task file, and the source: the project's file as it is, or an import of it, and `run`."""
    parts = [project.get("instead", "")]
    for name in [kernel["file"]] if isinstance(kernel.get("file"), str) else kernel.get("file", ()):
        text = (checkout / name).read_text(encoding="utf-8").split(project.get("until", "\0"))[0]
        for pattern in project.get("drop", ()):  # imports of what is not needed
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
        parts.append(text)
    text = "\n".join([*parts, kernel.get("import", "")])
    source = folder / f"{kernel['name']}.py"
    source.write_text(f"{text}\n\n\ndef run({kernel['arguments']}):\n    return {kernel['call']}\n", encoding="utf-8")
    lines = kernel["reference"].strip().splitlines()
    lines[-1] = f"return {lines[-1]}" if not kernel.get("mutates") else lines[-1]
    settings = [f"MUTATES = {tuple(kernel['mutates'])!r}"] if kernel.get("mutates") else []
    settings += [f"{name} = {value!r}" for name, value in kernel.get("settings", {}).items()]
    task = folder / f"{kernel['name']}_task.py"
    task.write_text(
        TASK.format(
            **{key: kernel[key] for key in ("name", "project", "check", "search", "inputs", "arguments")},
            settings="\n".join(settings),
            sizes=", ".join(kernel["check"][0]) + ",",
            reference="\n    ".join(lines),
        ),
        encoding="utf-8",
    )
    return task, source


def said(words: list[str], paths: list[Path], limit_s: float) -> dict[str, Any]:
    """The JSON answer of a command of evo-kernel's; {"reason": ...} where it has none."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", "from evo_kernel.cli.main import main; main()", *words, "--json"]
    try:
        late = limit_s + LATE_S
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=late, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "no verdict", "reason": f"no answer within {limit_s + LATE_S:g} s"}
    try:
        return json.loads(ended.stdout)
    except json.JSONDecodeError:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        return {"status": "no verdict", "reason": last[0][:300]}


def judged(kernel: dict[str, Any], project: dict[str, Any], checkout: Path, seconds: float, device: str) -> dict:
    """One result: the verdict on a published kernel, and what a search from it reached."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task, source = files_of(kernel, project, checkout, folder)
        paths = [checkout / root for root in project.get("roots", ["."])]
        verdict = said(["verify", str(source), "--task", str(task), "--device", device], paths, 120.0)
        found: dict[str, Any] = {}
        if seconds and verdict["status"] == "passed":
            words = ["run", str(task), "--seed", str(source), "--for", f"{seconds:g}s", "--device", device]
            found = said([*words, "--population", str(folder / "found.db")], paths, seconds)
    return {
        "name": kernel["name"],
        "project": kernel["project"],
        "commit": project["commit"],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "environment": verdict.get("environment", {}).get("label", ""),
        "status": verdict["status"],
        "reason": verdict["reason"],
        "cases": verdict.get("cases", []),
        "seconds": seconds if found else 0,
        "found": found.get("best") or {},
        "search_ended": found.get("stopped") or found.get("reason", ""),
    }


def rows() -> list[dict[str, Any]]:
    """All results; the last of each kernel."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return list({(row["name"], row["project"]): row for row in map(json.loads, lines)}.values())


def page(known: list[dict[str, Any]], listed: dict[str, Any]) -> str:
    """Markdown: one table a project."""
    lines = [
        "# Published kernels, judged",
        "",
        "`python -m benchmarks.audit CHECKOUTS --device cuda` judges kernels of other projects as they are published,",
        "and searches from each for a minute without a model; `benchmarks/published.toml` has the calls, references",
        "and sizes.",
        "",
        "* **error**: the largest found on the timed case ÷ what is allowed (1: refused)",
        "* **eager**, **compile**: PyTorch's time and torch.compile's ÷ the kernel's, so more than 1 is faster",
        "* **search**: the published kernel's time ÷ that of the best kernel found",
    ]
    for name, project in listed["project"].items():
        own = [row for row in known if row["project"] == name and row["commit"] == project["commit"]]
        if not own:
            continue
        where = ", ".join(sorted({f"{row['environment']}, {row['date']}" for row in own if row["environment"]}))
        passed = sum(row["status"] == "passed" for row in own)
        lines += ["", f"## {name}", "", f"Commit {project['commit'][:12]}; {where}. {passed} of {len(own)} pass.", ""]
        lines += ["| kernel | verdict | error | µs | eager | compile | search |", "|---|---|---|---|---|---|---|"]
        lines += [_table_row(row) for row in sorted(own, key=lambda row: row["name"])]
        lines += [f"\n{row['name']}: {row['reason']}" for row in own if row["status"] != "passed"]
    return "\n".join(lines) + "\n"


def _table_row(row: dict[str, Any]) -> str:
    if row["status"] != "passed":
        return f"| {row['name']} | **{row['status']}** | | | | | |"
    (case,) = row["cases"]
    ratios = [case["baselines_us"].get(name, 0.0) / case["us"] for name in ("eager", "torch.compile")]
    found = row["found"].get("cases", {}).get(case["case"], {}).get("us")
    numbers = [*ratios, case["us"] / found if found else 0.0]
    error = (case.get("compared") or {}).get("error")
    told = [f"{error:.2g}" if error is not None else "", f"{case['us']:.1f}"]
    told += [f"{number:.2f}" if number else "" for number in numbers]
    return f"| {row['name']} | passed | {' | '.join(told)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="?", help="folder with OWNER+NAME of each project")
    parser.add_argument("--only", default="", help="comma-separated names; all without a result if not given")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search; 0: none")
    parser.add_argument("--device", default="cpu", help="cpu: modeled; cuda: measured")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} from the results")
    options = parser.parse_args()
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    only = [name for name in options.only.split(",") if name]
    done = {(row["name"], row["project"], row["commit"]) for row in rows()}
    for kernel in listed["kernel"] if options.checkouts else ():
        project = listed["project"][kernel["project"]]
        key = (kernel["name"], kernel["project"], project["commit"])
        if kernel["name"] not in only if only else key in done:
            continue
        checkout = options.checkouts / kernel["project"].replace("/", "+")
        row = judged(kernel, project, checkout, options.seconds, options.device)
        with RESULTS.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        told = row["reason"] or _table_row(row)
        print(f"{kernel['name']:28} {row['status']:14} {told}", flush=True)
    if options.page:
        PAGE.write_text(page(rows(), listed), encoding="utf-8")


if __name__ == "__main__":
    main()
