"""The gallery for people: lists champions, describes one, and has one judged to be exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evo_kernel.champions import GALLERY, Champion, champions
from evo_kernel.errors import UserError
from evo_kernel.types import Evaluation


def listed(task: str | None) -> tuple[list[str], list[dict[str, Any]]]:
    """All champions, or the one that computes what a task does: as lines, and for JSON. Raises TaskError."""
    if task is None:
        return [line for one in champions() for line in _lines(one)], [one.as_data() for one in champions()]
    from evo_kernel.champions.matching import matching
    from evo_kernel.tasks.loading import load

    match = matching(load(task))
    if match is None:
        return [f"no champion computes what {task} does, or none takes its sizes"], []
    lines = [*_lines(match.champion), f"  start from it: evo-kernel run {task} --start-from {GALLERY}"]
    lines += [f"  cases here go beyond that: {', '.join(match.beyond)}"] if match.beyond else []
    return lines, [match.champion.as_data() | {"beyond": match.beyond}]


def _lines(champion: Champion) -> list[str]:
    return [
        f"{champion.name}  {champion.score_text}",
        f"  verified for {champion.ranges_text}",
        f"  {champion.spec}",
    ]


def described(champion: Champion) -> str:
    """Its line, docstring, hidden cases and lineages."""
    lines = [*_lines(champion), "", champion.docstring, "", "Hidden cases", "------------"]
    for case in champion.hidden:
        sizes = " ".join(f"{name} {case[name]}" for name in champion.ranges)
        gain = f"{case['baseline_us'] / case['us']:.2f}x"
        lines.append(f"{sizes}: {case['us']} µs, {case['baseline']} {case['baseline_us']} µs, {gain}")
    for lineage in champion.lineages:
        cost = ", ".join(f"{name} {'not recorded' if v is None else v}" for name, v in lineage["cost"].items())
        lines += ["", f"Bred for {lineage['task']} from {lineage['root']}", f"by an {lineage['written_by']}", cost]
        for step in lineage["path"]:
            gain = "" if step["log_gain"] is None else f"  log gain {step['log_gain']:+.3f}"
            lines.append(f"  {step['candidate']:>3}  {step['strategy']}{gain}")
    return "\n".join([*lines, "", f"differences: {champion.file.with_name('lineage.json')}"])


def confirmed_population(champion: Champion, folder: Path, device: str, say: Callable[[str], None]) -> tuple[Path, int]:
    """A population in which the champion was judged and confirmed here, and its candidate. Raises UserError where it
    did not pass or was refuted."""
    from evo_kernel.app import compose, session
    from evo_kernel.app.external_session import ExternalSession
    from evo_kernel.config import load_config

    path = folder / f"{champion.name}.db"
    named = {"task": champion.name, "population": path, "start_from": GALLERY, "first": "auto", "device": device}
    config, task, path = session.new_run(load_config(None).model_copy(update=named))
    with compose.prepared(config, task, path, create=True) as parts:
        parts.judge.baselines.on_baselines = compose.kept_baselines(parts.population, say)
        judging = ExternalSession(parts, say)
        *others, planted = parts.population.pending()
        _refuse(champion, judging.judge(planted).evaluation)
        for recorded in others:  # the first kernel, beside which it is timed
            judging.judge(recorded)
        _refuse(champion, judging.confirm(planted.candidate))
    return path, planted.candidate


def keep_lineage(champion: Champion, folder: Path) -> None:
    """Beside an exported package, whose own provenance begins with the champion."""
    text = json.dumps(champion.lineages, indent=1)
    (folder / "lineage.json").write_text(f"{text}\n", encoding="utf-8")


def _refuse(champion: Champion, evaluation: Evaluation) -> None:
    if not evaluation.passed:
        raise UserError(
            f"the champion {champion.name} is not exported: {evaluation.status} where scores are "
            f"{evaluation.environment.label}: {evaluation.reason}"
        )
