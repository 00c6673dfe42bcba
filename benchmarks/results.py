"""The table of docs/results-h200.md: what searches found, read from their population files.

    python -m benchmarks.results softmax.db matmul.db --command 'evo-kernel run TASK --config configs/h200.toml'

A time is the median that the judge measured on a search case; the first kernel's is with its knobs as written. What was
confirmed comes from a fresh process on fresh inputs. Nothing is measured here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evo_kernel.types import CaseKind, Evaluation, Measurement, Rival
from populations.reading import PopulationReader

HEAD = "| case | first kernel µs | found µs | gain | baselines µs | against the fastest | of the speed of light |"


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("populations", type=Path, nargs="+")
    made.add_argument("--command", default="", help="how they were made, printed above the tables")
    chosen = made.parse_args()
    if chosen.command:
        print(f"`{chosen.command}`\n")
    for path in chosen.populations:
        with PopulationReader(path) as reader:
            print("\n".join(of_population(reader)), end="\n\n")


def of_population(reader: PopulationReader) -> list[str]:
    """The lines of one task."""
    status = reader.status()
    standing = status.champion or status.best
    lines = [f"### {status.task}"]
    if standing is None or status.environment is None:
        return [*lines, "Nothing passed."]
    view, first = reader.candidate(standing.candidate), reader.candidate(1)
    found, before = view.evaluation, next((e for e in first.evaluations if e.purpose == "score"), None)
    if found is None or before is None:  # later evaluations of the first kernel have tuned knobs written in
        return [*lines, "Nothing was measured."]
    judged = sum(status.evaluations.values())
    score = f"{found.score:.3f}" if found.score is not None else "none"
    lines += [
        f"Score {score} ({'confirmed' if status.champion else 'not confirmed'}) by candidate {standing.candidate} of "
        f"{status.candidates}, {judged} evaluations in {status.wall_s / 60:.1f} minutes; {status.environment.label}, "
        f"torch {status.environment.torch}, Triton {status.environment.triton}.",
        "",
        HEAD,
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(m, _untuned_us(before, m.case)) for m in found.measurements]
    confirmed = reader.confirmation(standing.candidate)
    return [*lines, "", *(_confirmed(confirmed) if confirmed else ["No confirmation."])]


def _untuned_us(first: Evaluation, case: str) -> float | None:
    """Time of the first kernel as it stands, whatever setting of its knobs it was scored with."""
    plans = {plan for name, knobs, plan in first.plans if name == case and not knobs}
    times = [*(v.measurement for v in first.verdicts if v.measurement is not None), *first.measurements]
    return next((m.median_us for m in times if m.case == case and m.plan in plans), None)


def _row(found: Measurement, first_us: float | None) -> str:
    ranked = sorted(found.baselines_us.items(), key=lambda item: item[1])
    baselines = ", ".join(f"{name} {us:.1f}" for name, us in ranked)
    light = f"{found.light_share:.0%}" if found.light_share is not None else ""
    before = f"{first_us:.1f}" if first_us else ""
    gain = f"{first_us / found.median_us:.2f}x" if first_us else ""
    return (
        f"| {found.case} | {before} | {found.median_us:.1f} | {gain} | {baselines} | {found.speedup:.2f}x | {light} |"
    )


def _confirmed(found: Evaluation) -> list[str]:
    """What the fresh pairs said."""
    gains = {kind: found.gain_over(Rival.FIRST, kind) for kind in (CaseKind.SEARCH, CaseKind.CONFIRM)}
    told = [f"{gain} on the {kind} cases" for kind, gain in gains.items() if gain is not None]
    survived = f" {found.survived:.0%} of the claimed {found.claimed:.3f}x survived." if found.survived else ""
    return [f"Confirmation, side by side with the first kernel: {', '.join(told) or found.reason}.{survived}"]


if __name__ == "__main__":
    main()
