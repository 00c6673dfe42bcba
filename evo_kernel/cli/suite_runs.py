"""The searches of a suite: a child process each, so that no task can end another, and a file that remembers them.

`results.jsonl` in the suite's folder gets one line for each search that ended, and is only appended to. What is done
follows from it: the same command again skips what had its budget, and a larger budget resumes the populations.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.observe.suites import SuiteRow, geomean

GRACE_S = 600.0
"""What a search may take beyond its budget: loading, the first kernel, baselines, confirming what it found."""
RESULTS = "results.jsonl"


@dataclass(frozen=True)
class Chosen:
    """One task of a suite."""

    spec: str
    label: str
    group: str

    @property
    def population(self) -> str:
        """Its population's file name."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.label) + ".db"


@dataclass(frozen=True)
class Budget:
    """Of one task, over all turns."""

    minutes: float
    evaluations: int | None
    turns: int

    def until(self, turn: int) -> tuple[float, int | None]:
        """Minutes and evaluations that may be spent by the end of a turn (from 1)."""
        evaluations = None if self.evaluations is None else max(1, self.evaluations * turn // self.turns)
        return self.minutes * turn / self.turns, evaluations


def tasks_of(suite: str, only: Sequence[str], limit: int | None) -> list[Chosen]:
    """The tasks that a suite's name stands for. Raises UserError."""
    found = _all_of(suite)
    if only:
        found = [one for one in found if any(fnmatch.fnmatchcase(one.label, pattern) for pattern in only)]
    if not found:
        listed = "tasks list" if suite == "builtin" else f"tasks import {suite} --list"
        raise UserError(f"no task of {suite} fits {', '.join(only) or 'it'}; `evo-kernel {listed}` names them")
    return found[:limit]


def _all_of(suite: str) -> list[Chosen]:
    from evo_kernel.tasks.loading import builtin_names, importer_of

    if suite == "builtin":
        return [Chosen(name, name, "builtin") for name in builtin_names()]
    importer = importer_of(suite)
    if importer is not None:
        return [Chosen(entry.spec, entry.label, entry.group) for entry in importer.entries(suite.partition(":")[2])]
    path = Path(suite).expanduser()
    if not path.is_file():
        raise UserError(
            f"there is no suite {suite!r}: name `builtin`, a benchmark's checkout such as kernelbench:PATH/level1, or "
            "a text file with a TASK a line"
        )
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}): name a text file with a TASK a line") from error
    specs = list(dict.fromkeys(line for line in lines if line))
    labels = [Path(spec).stem if spec.endswith(".py") else spec for spec in specs]
    twice = [label for label in labels if labels.count(label) > 1]
    return [
        Chosen(spec, spec if label in twice else label, path.stem) for spec, label in zip(specs, labels, strict=True)
    ]


class SuiteRun:
    """All searches of a suite in its folder."""

    def __init__(
        self,
        folder: Path,
        chosen: Sequence[Chosen],
        budget: Budget,
        extra: Sequence[str],
        *,
        retry: bool = False,
    ) -> None:
        self.folder, self.chosen, self.budget, self.extra = folder, tuple(chosen), budget, tuple(extra)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be made ({error.strerror}): name another folder with --to") from error
        self._results = folder / RESULTS
        self._records = self._read()
        if retry:
            self._records = {task: one for task, one in self._records.items() if one["row"]["status"] != "failed"}

    def rows(self) -> Iterator[tuple[SuiteRow, int]]:
        """Search what has budget left, in turn; each result as it comes, with its turn."""
        for turn in range(1, self.budget.turns + 1):
            minutes, evaluations = self.budget.until(turn)
            for one in self.chosen:
                if self._done(one, minutes, evaluations):
                    continue
                row = self._search(one, minutes, evaluations)
                self._keep(one, row, minutes, evaluations)
                yield row, turn

    def found(self) -> list[SuiteRow]:
        """The latest of every task; what has not been reached is waiting."""
        return [
            _row(self._records[one.spec]["row"])
            if one.spec in self._records
            else SuiteRow(one.spec, one.label, one.group, "waiting", "not reached yet: the same command goes on")
            for one in self.chosen
        ]

    def _done(self, one: Chosen, minutes: float, evaluations: int | None) -> bool:
        record = self._records.get(one.spec)
        if record is None:
            return False
        if record["row"]["status"] == "failed":
            return True  # until --retry
        had = record["evaluations"]
        enough = had is None or (evaluations is not None and evaluations <= had)
        return enough and minutes <= record["minutes"] + 1e-9

    def _search(self, one: Chosen, minutes: float, evaluations: int | None) -> SuiteRow:
        population = self.folder / one.population
        budget = ["--set", f"budget.hours={minutes / 60:.6f}"]
        if evaluations is not None:
            budget += ["--set", f"budget.evaluations={evaluations}"]
        if population.exists():  # `resume` keeps its configuration; what was said then holds
            command = ["resume", str(population), *_without_config(self.extra), *budget, "--json"]
        else:
            command = ["run", one.spec, "--population", str(population), *self.extra, *budget, "--json"]
        code, out, err = _child(command, minutes * 60 + GRACE_S)
        row = SuiteRow(one.spec, one.label, one.group, "failed")
        try:
            told = json.loads(out.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return replace(row, reason=_why(code, err))
        return _with_first(_with_summary(row, told), population)

    def _keep(self, one: Chosen, row: SuiteRow, minutes: float, evaluations: int | None) -> None:
        record = {"task": one.spec, "minutes": minutes, "evaluations": evaluations, "row": asdict(row)}
        self._records[one.spec] = record
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> dict[str, dict[str, Any]]:
        """Task → its latest line; a line that a killed process left unfinished counts as not there."""
        found: dict[str, dict[str, Any]] = {}
        if not self._results.exists():
            return found
        for line in self._results.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            found[record["task"]] = record
        return found


def _without_config(extra: Sequence[str]) -> list[str]:
    kept = list(extra)
    if "--config" in kept:
        at = kept.index("--config")
        del kept[at : at + 2]
    return kept


def _child(command: Sequence[str], deadline_s: float) -> tuple[int, str, str]:
    """Exit code and what was said. An interrupt goes on to the child, which finishes what is under way."""
    words = [sys.executable, "-P", "-m", "evo_kernel.cli.main", *command]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ
    )
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 137, "", f"took longer than {deadline_s:.0f} s and was ended; give it more --minutes"
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=GRACE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        raise
    return process.returncode, out, err


def _why(code: int, err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else f"its process ended with code {code} and said nothing"


def _with_summary(row: SuiteRow, told: dict[str, Any]) -> SuiteRow:
    """The row with what `run --json` says."""
    row = replace(
        row,
        status="nothing passed",
        reason="no candidate passed; `evo-kernel tree` on its population lists what became of each",
        environment=told["environment"]["label"],
        measured=told["environment"]["kind"] == "measured",
        evaluations=sum(told["evaluations"].values()),
    )
    best = told["best"]
    if best is None or not best["cases"]:
        return row
    cases = list(best["cases"].values())
    names = set.intersection(*(set(case["baselines_us"]) for case in cases))
    lights = [case["light_share"] for case in cases if case["light_share"] is not None]
    shares = [one["own_kernels_share"] for one in best["mixed"].values()]
    operations = sorted({name for one in best["mixed"].values() for name in one["torch_operations"]})
    return replace(
        row,
        status="confirmed" if told["confirmed"] else "passed",
        reason="",
        best_us=geomean([case["us"] for case in cases]),
        baselines_us={name: geomean([case["baselines_us"][name] for case in cases]) or 0.0 for name in sorted(names)},
        light_share=geomean(lights) if lights and all(lights) else None,
        own_share=1.0 if not operations else None if None in shares else min(shares),
        torch_operations=tuple(name.removeprefix("aten.") for name in operations),
    )


def _with_first(row: SuiteRow, population: Path) -> SuiteRow:
    """The row with its first kernel's kind and time, and the minutes of all sessions."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        first = reader.candidate(1)
        minutes = reader.status().wall_s / 60
    times = [m.median_us for m in first.evaluation.measurements] if first.evaluation else []
    return replace(row, first=kind_of(first.proposal.source.text), first_us=geomean(times), minutes=minutes)


def kind_of(text: str) -> str:
    """What a first kernel is: kernels, mixed (some operations stay PyTorch's) or torch."""
    if "torch.ops.aten." not in text:
        return "kernels"
    return "mixed" if "@triton.jit" in text else "torch"


def _row(data: dict[str, Any]) -> SuiteRow:
    told: dict[str, Any] = data | {"torch_operations": tuple(data["torch_operations"])}
    return SuiteRow(**told)
