"""Judges published Triton kernels, searches from each, and writes a page of the results.

python -m benchmarks.audit CHECKOUTS [--only NAME,NAME] [--device cuda] [--gpus 4] [--for 580s]
python -m benchmarks.audit CHECKOUTS --seconds 60 [--only NAME,NAME] [--device cuda] [--gpus 4] [--for 580s]
python -m benchmarks.audit CHECKOUTS --children [--only NAME,NAME] [--gpus 2] [--for 2h]
python -m benchmarks.audit CHECKOUTS --reproduce [--only NAME,NAME]
python -m benchmarks.audit --page

benchmarks/published.toml lists projects with their commits, and kernels: the call that is judged, inputs, a reference
in plain PyTorch. CHECKOUTS holds a folder OWNER+NAME of each project at its commit (`git clone`, `git checkout`).
A line of benchmarks/published.jsonl is one kernel: its verdict, and again when it was searched from; the last counts.
The first command judges, the second searches from what passed. A run goes on where the last one stopped. On a GPU, a
kernel for each four cores is judged, or searched from, side by side. `--children` judges, of each kernel that passed,
one child of every strategy that the rewriter offers. Searches and children begin with cheap kernels. `--reproduce` runs
what the list has to show that kernels are wrong, in plain PyTorch on a GPU, and prints each last value.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evo_kernel.deadline import seconds_of
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.packaged import packaged_source
from evo_kernel.types import Source
from operators.micro.coder import RewriteCoder

HERE = Path(__file__).parent
LIST, RESULTS, PAGE = HERE / "published.toml", HERE / "published.jsonl", HERE.parent / "docs" / "results" / "audit.md"
WRONG = ("wrong", "runtime_error")
LATE_S = 300.0  # beyond what a command was given
CHILDREN_S = 600.0
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
    """The task file, and the source: the project's file or module as it is, and `run`."""
    parts, until = [project.get("instead", "")], kernel.get("until", project.get("until", "\0"))
    for name in [kernel["file"]] if isinstance(kernel.get("file"), str) else kernel.get("file", ()):
        text = (checkout / name).read_text(encoding="utf-8").split(until)[0]
        for pattern in project.get("drop", ()):  # imports of what is not needed
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
        parts.append(text)
    for module, name in re.findall(r"^from (\S+) import (\w+)$", kernel.get("import", ""), flags=re.MULTILINE):
        parts.append(imported(module, name, [str(checkout / root) for root in project.get("roots", ["."])]))
    text = "\n".join(parts)
    future = re.findall(r"^from __future__ import .*$", text, flags=re.MULTILINE)
    text = "\n".join([*dict.fromkeys(future), *[line for line in text.splitlines() if line not in future]])
    source = folder / f"{kernel['name']}.py"
    *before, value = kernel["call"].strip().splitlines()
    body = "\n    ".join([*before, f"return {value}"])
    source.write_text(f"{text}\n\n\ndef run({kernel['arguments']}):\n    {body}\n", encoding="utf-8")
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


def reproduced(kernel: dict[str, Any], project: dict[str, Any], checkout: Path) -> str:
    """What a kernel's `reproduce` shows: its last value, or how it ended."""
    *before, last = ast.parse(kernel["reproduce"]).body
    shown = ast.unparse(last) if isinstance(last, ast.Expr) else "None"
    with tempfile.TemporaryDirectory() as name:
        _, source = files_of(kernel, project, checkout, Path(name))
        source.rename(source.with_name(Path(kernel.get("file", "own.py")).name))
        start = ["import torch", "import torch.nn.functional as F", project.get("instead", "")]
        lines = [*start, *map(ast.unparse, before), f"print({shown})"]
        roots = [str(checkout / root) for root in project.get("roots", ["."])]
        paths = [name, *roots, os.environ.get("PYTHONPATH", "")]
        try:
            ended = subprocess.run(
                [sys.executable, "-c", "\n".join(lines)], env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                capture_output=True, text=True, check=False, timeout=CHILDREN_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no end within {CHILDREN_S:g} s"
    return (ended.stdout or ended.stderr[-600:]).strip()


def imported(module: str, name: str, roots: list[str]) -> str:
    """A function's module with the kernels of its package that it needs, as evo-kernel reads a package's function."""
    own = sys.path[:]
    sys.path[:0] = roots
    try:
        text, _, defined = packaged_source(f"{module}:{name}").text.rpartition("\n\nrun = ")
    finally:
        sys.path[:] = own
    return text if defined.strip() == name else f"{text}\n{name} = {defined}"


class Machine:
    """Where kernels are judged: commands of evo-kernel's on one GPU, until the time is up."""

    def __init__(self, device: str, gpu: int | None, beside: int, end: float) -> None:
        """`gpu`: the only one that commands see; `beside`: searches side by side there; `end`: of time.monotonic()."""
        self._device, self._beside, self._end = device, beside, end
        self._environment = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})

    def judged(
        self, kernel: dict[str, Any], project: dict[str, Any], checkout: Path, before: dict | None, seconds: float
    ) -> dict[str, Any] | None:
        """One result, None if the time was up: the verdict; if it is known (`before`), with what a search reached."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            task, source = files_of(kernel, project, checkout, folder)
            paths = [checkout / root for root in project.get("roots", ["."])]
            text, coder = Source(source.read_text(encoding="utf-8")), RewriteCoder()
            offered = {one.name: one for one in reversed(coder.offer(text, load(task).card()))}  # the first of a name
            if before is not None and not seconds:
                made = {"": source} | {name: folder / f"{name}.py" for name in offered}
                for strategy in offered.values():
                    made[strategy.name].write_text(coder.implement(text, strategy), encoding="utf-8")
                files = [str(file) for file in made.values()]
                found = self._said(["verify", *files, "--task", str(task)], paths, CHILDREN_S)
                judged = zip(made, found, strict=True) if isinstance(found, list) else ()  # else it ended without
                told = {name: f"{one['status']}: {one['reason']}"[:300] for name, one in judged}
                return before | {"strategies": sorted(offered)} | ({"children": told} if told else {})
            if before is not None:
                with task.open("a", encoding="utf-8") as file:  # torch.compile's time is known, and takes seconds
                    file.write("\n\nreference.compiled_baseline = False\n")
                words = ["run", str(task), "--seed", str(source), "--for", f"{seconds:g}s"]
                found = self._said([*words, "--population", str(folder / "found.db")], paths, seconds)
                ended = found and (found.get("stopped") or found.get("reason", "") or "?")
                best = (found and found.get("best")) or {}
                of = {"seconds": seconds, "side_by_side": self._beside}
                return found and before | of | {"found": best, "search_ended": ended}
            verdict = self._said(["verify", str(source), "--task", str(task)], paths, 480.0)
        return verdict and {
            "name": kernel["name"], "project": kernel["project"], "commit": project["commit"],
            "date": f"{datetime.now(UTC):%Y-%m-%d}", "environment": verdict.get("environment", {}).get("label", ""),
            "status": verdict["status"], "reason": verdict["reason"], "cases": verdict.get("cases", []),
            "strategies": sorted(offered),
        }  # fmt: skip

    def _said(self, words: list[str], paths: list[Path], limit_s: float) -> Any:
        """The JSON answer of a command; {"reason": ...} where it has none, None where the time was up."""
        seen = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
        start = "from evo_kernel.cli.main import entry_point; entry_point()"
        command = [sys.executable, "-c", start, *words, "--device", self._device, "--json"]
        left = self._end - time.monotonic()
        late = limit_s + LATE_S
        try:
            ended = subprocess.run(
                command, env=self._environment | {"PYTHONPATH": seen}, capture_output=True, text=True, check=False,
                timeout=max(0.0, min(late, left)),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"status": "no verdict", "reason": f"no answer within {late:g} s"} if late < left else None
        try:
            return json.loads(ended.stdout)
        except json.JSONDecodeError:
            last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
            return {"status": "no verdict", "reason": last[0][:300]}


def rows() -> list[dict[str, Any]]:
    """All results; the last of each kernel."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return list({(row["name"], row["project"]): row for row in map(json.loads, lines)}.values())


def page(known: list[dict[str, Any]], listed: dict[str, Any]) -> str:
    """Markdown: what was found, one table a project, and how each wrong answer is repeated."""
    kernels = {(kernel["name"], kernel["project"]): kernel for kernel in listed["kernel"]}
    known = [row for row in known if (row["name"], row["project"]) in kernels]
    known = [row for row in known if row["commit"] == listed["project"][row["project"]]["commit"]]
    passed = [row for row in known if row["status"] == "passed"]
    wrong = [row for row in known if row["status"] in WRONG]
    unproved = [row["name"] for row in wrong if "reproduce" not in kernels[row["name"], row["project"]]]
    if unproved:
        raise SystemExit(f"published.toml has no `reproduce` of what is wrong in {', '.join(unproved)}")
    faster = [sum(_ratios(row)[at] > 1 for row in passed) for at in (0, 1)]
    gains = [gain for row in passed if (gain := _ratios(row)[2])]
    where = ", ".join(sorted({row["environment"] for row in known if row["environment"]}))
    lines = [
        "# Published kernels, judged",
        "",
        f"{len(known)} of {len(kernels)} listed kernels, of {len({row['project'] for row in known})} projects, "
        f"judged as they were published, {where}: **{len(passed)} pass, {len(wrong)} give wrong answers**, "
        f"{len(known) - len(passed) - len(wrong)} do not build or could not be judged. "
        f"Of those that pass, {faster[0]} are faster than PyTorch and {faster[1]} faster than torch.compile.",
    ]
    if gains:
        spent = sorted({(row["seconds"], row.get("side_by_side", 1)) for row in passed if _ratios(row)[2]})
        told = " or ".join(f"{seconds:g} s, {beside} side by side on a GPU" for seconds, beside in spent)
        lines[-1] += (
            f" Searches without a model, of {told}, made {sum(gain > 1.02 for gain in gains)} of {len(gains)} faster, "
            f"half of all by {statistics.median(gains):.2f} times or more."
        )
    if told := [row["strategies"] for row in passed if "strategies" in row]:
        several = sum(len(names) >= 3 for names in told)
        lines[-1] += f" The rewriter offers three strategies or more for {several} of {len(told)} that pass."
    if judged := [row["children"] for row in passed if row.get("children", {}).get("", "").startswith("passed")]:
        fates = [(name, fate.startswith("passed")) for one in judged for name, fate in one.items() if name]
        rates = {
            name: [right for other, right in fates if other == name] for name in sorted({name for name, _ in fates})
        }
        all_right = sum(all(fate.startswith("passed") for fate in one.values()) for one in judged)
        lines[-1] += (
            f" One child of each, judged without a GPU (`--children`) for {len(judged)} kernels that pass there too: "
            f"{sum(right for _, right in fates)} of {len(fates)} are right, all of one kernel for {all_right}. "
            + "By strategy: "
            + ", ".join(f"{name} {sum(one)} of {len(one)}" for name, one in rates.items())
            + "."
        )
    undefined = sum("without `other`" in row.get("children", {}).get("", "") for row in passed)
    if undefined:
        lines[-1] += (
            f" {undefined} that pass on the GPU are refused without one: they need what `tl.load` gives where its mask "
            "is off and `other` is missing, which Triton leaves undefined."
        )
    lines += [
        "",
        "`python -m benchmarks.audit CHECKOUTS --device cuda` repeats it, with `--seconds 60` the searches;",
        "`--reproduce` runs on a GPU what shows that kernels are wrong, as was done. `benchmarks/published.toml` has",
        "commits, calls, inputs, sizes, plain PyTorch references, and what was changed so that a file imports alone.",
        "",
        "* **error**: the largest on the timed case, against float64, ÷ what [the judge](../internals/judge.md) allows",
        "* **eager**, **compile**: PyTorch's time and torch.compile's ÷ the kernel's, so more than 1 is faster",
        "* **search**: the published kernel's time ÷ that of the best kernel found; 1 if none is faster. It may",
        "  descend from a first kernel that the search wrote itself",
    ]
    for name, project in listed["project"].items():
        own = sorted((row for row in known if row["project"] == name), key=lambda row: row["name"])
        if not own:
            continue
        count = sum(row["status"] == "passed" for row in own)
        dates = "–".join(sorted({row["date"] for row in own})[:: max(1, len({row["date"] for row in own}) - 1)])
        told = f"Commit {project['commit'][:12]}, {dates}. {count} of {len(own)} pass."
        told += f" Its own tests allow {project['allows']}." if "allows" in project else ""
        lines += ["", f"## {name}", "", told, ""]
        lines += ["| kernel | verdict | error | µs | eager | compile | search |", "|---|---|---|---|---|---|---|"]
        lines += [_table_row(row) for row in own]
        for row in own:
            if row["status"] != "passed":
                lines += ["", f"**{row['name']}**: {_short(row['reason'])}"]
                shown = kernels[row["name"], name].get("reproduce")
                lines += ["", "```python", shown.strip(), "```"] if shown else []
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """The first line and, of a compiler's message, the last."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return (lines[0] if len(lines) < 2 else f"{lines[0].split(': ')[0]}: {lines[-1]}")[:300]


def _ratios(row: dict[str, Any]) -> tuple[float, float, float]:
    """The times of eager PyTorch, torch.compile and the kernel ÷ those of the kernel, the kernel and what was found."""
    (case,) = row["cases"]
    eager, compiled = (case["baselines_us"].get(name, 0.0) / case["us"] for name in ("eager", "torch.compile"))
    found = row.get("found", {}).get("cases", {}).get(case["case"], {}).get("us")
    return eager, compiled, max(1.0, case["us"] / found) if found else 0.0


def _table_row(row: dict[str, Any]) -> str:
    if row["status"] != "passed":
        return f"| {row['name']} | **{row['status'].replace('_', ' ')}** | | | | | |"
    (case,) = row["cases"]
    error = (case.get("compared") or {}).get("error")
    told = [f"{error:.2g}" if error is not None else "", f"{case['us']:.1f}"]
    told += [f"{number:.2f}" if number else "" for number in _ratios(row)]
    return f"| {row['name']} | passed | {' | '.join(told)} |"


def without_verdict(listed: dict[str, Any]) -> list[dict[str, Any]]:
    known = {(row["name"], row["project"], row["commit"]) for row in rows()}
    return [one for one in listed["kernel"] if (one["name"], one["project"], _commit(one, listed)) not in known]


def without(
    part: str, chosen: list[dict[str, Any]], listed: dict[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Kernels that passed and lack a part of their row, with the rows; cheap kernels first."""
    known = {(row["name"], row["project"], row["commit"]): row for row in rows() if row["status"] == "passed"}
    found = [(one, known.get((one["name"], one["project"], _commit(one, listed)))) for one in chosen]
    return sorted(
        [(one, row) for one, row in found if row and part not in row], key=lambda job: job[1]["cases"][0]["us"]
    )


def _commit(kernel: dict[str, Any], listed: dict[str, Any]) -> str:
    return listed["project"][kernel["project"]]["commit"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="?", help="folder with OWNER+NAME of each project")
    parser.add_argument("--only", default="", help="comma-separated names; all without a result if not given")
    parser.add_argument("--seconds", type=float, default=0.0, help="search for so long from each that passed")
    parser.add_argument("--children", action="store_true", help="judge children of what passed")
    parser.add_argument("--reproduce", action="store_true", help="show that what is wrong is wrong, in plain PyTorch")
    parser.add_argument("--device", default="cpu", help="cpu: modeled; cuda: measured")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs in use; all are seen if not given")
    parser.add_argument("--for", dest="limit", default="365d", help="stop after this time, like 580s or 2h")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} from the results")
    options = parser.parse_args()
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    end = time.monotonic() + seconds_of(options.limit)
    free, writing = queue.SimpleQueue[Machine](), threading.Lock()
    gpus = list(range(options.gpus)) or [None]
    beside = max(1, usable_cores() // (4 * len(gpus))) if options.device == "cuda" else 1
    for gpu in gpus * beside:
        free.put(Machine(options.device, gpu, beside, end))

    def work(kernel: dict[str, Any], before: dict[str, Any] | None = None) -> None:
        project = listed["project"][kernel["project"]]
        checkout = options.checkouts / kernel["project"].replace("/", "+")
        machine = free.get()
        seconds = 0.0 if options.children else options.seconds
        go = options.children or time.monotonic() < end
        row = machine.judged(kernel, project, checkout, before, seconds) if go else None
        free.put(machine)
        if row is not None and row != before:
            with writing, RESULTS.open("a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
            told = _table_row(row) if row["status"] == "passed" else _short(row["reason"])
            if options.children:
                told = ", ".join(f"{name} {fate[:80]}" for name, fate in row.get("children", {}).items())
            print(f"{kernel['name']:28} {row['status']:14} {told}", flush=True)

    if options.checkouts:
        chosen = [one for one in listed["kernel"] if not options.only or one["name"] in options.only.split(",")]
        if options.reproduce:
            for one in chosen:
                if "reproduce" in one:
                    project, checkout = one["project"], options.checkouts / one["project"].replace("/", "+")
                    print(f"## {one['name']}\n{reproduced(one, listed['project'][project], checkout)}", flush=True)
            return
        with ThreadPoolExecutor(len(gpus) * beside) as pool:
            if options.children or options.seconds:
                jobs = without("children" if options.children else "found", chosen, listed)
                list(pool.map(lambda job: work(*job), jobs))
            else:
                list(pool.map(work, chosen if options.only else without_verdict(listed)))
    if options.page:
        PAGE.write_text(page(rows(), listed), encoding="utf-8")


if __name__ == "__main__":
    main()
