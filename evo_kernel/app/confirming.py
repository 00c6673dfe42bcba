"""`confirm`: one candidate of a population is judged on hidden cases, and nothing is searched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.app import external_session
from evo_kernel.app.verdicts import confirmed_data, evaluation_data
from evo_kernel.errors import TaskError, UserError
from evo_kernel.types import Evaluation
from populations.reading import PopulationReader


@dataclass(frozen=True)
class Confirmation:
    """What became of it."""

    candidate: int
    evaluation: Evaluation
    known: bool  # it was settled before: nothing was judged

    def as_data(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "candidate": self.candidate,
            "confirmed": self.evaluation.passed,
            "known": self.known,
            "confirmation": confirmed_data(self.evaluation),
            "evaluation": evaluation_data(self.evaluation),
        }


def confirm(
    path: Path, candidate: int | None, device: str | None, wait_s: float, say: Callable[[str], None]
) -> Confirmation:
    """Confirm a candidate, the best if None, unless that was done before. Raises UserError, InfraError.

    `say` hears what is begun, and of failures of the machine.
    """
    with PopulationReader(path) as reader:
        best = reader.best()
        number = candidate or (best.candidate if best is not None else None)
        if number is None:
            raise UserError(f"{path} has no candidate that passed; `evo-kernel status {path}` says more")
        judged, settled = reader.candidate(number).evaluation, reader.confirmation(number)
        identity = reader.task_identity
    if judged is None or not judged.passed:
        raise UserError(f"candidate {number} has not passed: only what passed can be confirmed")
    if settled is not None and device is None:
        from evo_kernel.tasks.loading import load  # imports torch, before which a judge's children start

        name = external_session.last_config(path, None).task
        with contextlib.suppress(TaskError):  # without its file, what was found holds
            if name and load(name).identity != identity:
                raise UserError(f"{name} has changed since {path} was made: restore it, or start a new run")
        return Confirmation(number, settled, known=True)
    say(f"confirming candidate {number} on hidden cases, which takes about as long as three verdicts")
    with external_session.judged(path, external_session.last_config(path, device), wait_s, say) as session:
        with PopulationReader(path) as reader:  # of the environment that judges now
            settled = reader.confirmation(number)
        if settled is not None:
            return Confirmation(number, settled, known=True)
        return Confirmation(number, session.confirm(number), known=False)
