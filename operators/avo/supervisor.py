"""Notices that attempts get nowhere, reviews the trajectory, and gives several new directions to the next ones.

The review is asked of the model; where it fails, it is made by rule.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.types import Brief, Call
from operators.avo.memory import AgentMemory, Record, Review, same_idea
from operators.llm.base import Message, Model, ModelFailed
from operators.macro.catalogue import CATALOGUE, FAMILIES
from operators.prompts.evidence import version_line
from operators.workbench.tool import WorkbenchLineage

MAX_TOKENS = 2048
DIRECTION = 600  # characters
SYSTEM = (
    "You supervise a coding agent that makes GPU kernels faster. It has got stuck. Read what it tried and what came of "
    "it, say in a sentence why it is stuck, and give it new directions: each a different idea that it has not tried, "
    "concrete enough to begin with (what to change, where, which sign shows that it works, what to give up early). "
    "Do not repeat what failed. An earlier version may be a better start than the latest."
)


@dataclass(frozen=True)
class SupervisorLimits:
    """When the trajectory is reviewed. A review starts both counts anew, and so does a commit."""

    attempts: int = 6  # in a row without a commit
    hours: float | None = 3.0  # without a commit
    repeats: int = 3  # times that the same idea or the same kernel has failed
    directions: int = 4  # asked for


class Supervisor:
    """Thread-safe: of attempts that begin together one is held up by a review, the others go on."""

    def __init__(self, limits: SupervisorLimits, model: Model, lineage: WorkbenchLineage | None) -> None:
        self._limits, self._model, self._lineage = limits, model, lineage
        self._busy = threading.Lock()

    def look(self, memory: AgentMemory, brief: Brief, now: float) -> tuple[Call, ...]:
        """Review the trajectory where that is due before this attempt begins: what it cost. `now`: Unix time."""
        if not self._busy.acquire(blocking=False):
            return ()
        try:
            why, repeated = self.stuck(memory, now)
            return self._review(memory, brief, now, why, repeated) if why else ()
        finally:
            self._busy.release()

    def stuck(self, memory: AgentMemory, now: float) -> tuple[str, list[str]]:
        """(the sign in a sentence, "" where there is none; the ideas and plans that were repeated)."""
        repeated = memory.repeated(self._limits.repeats)
        if repeated:
            named = ", ".join(repeated[:3])
            return f"the same thing failed {self._limits.repeats} times or more: {named}", repeated
        attempts, since = memory.barren()
        if attempts >= self._limits.attempts:
            return f"no commit in {attempts} attempts", []
        hours = (now - since) / 3600 if since is not None else 0.0
        if self._limits.hours is not None and attempts and hours >= self._limits.hours:
            return f"no commit in {hours:.1f} hours", []
        return "", []

    def _review(
        self, memory: AgentMemory, brief: Brief, now: float, why: str, repeated: Sequence[str]
    ) -> tuple[Call, ...]:
        directions, calls = self._asked(memory, brief, why)
        if not directions:
            directions = by_rule(memory.records(), brief, self._limits.directions)
        review = Review(brief.attempt, why, tuple(one[:DIRECTION] for one in directions), tuple(repeated), now)
        memory.reviewed(review)
        return calls

    def _asked(self, memory: AgentMemory, brief: Brief, why: str) -> tuple[list[str], tuple[Call, ...]]:
        """The model's directions; none where there is no answer that can be used."""
        wanted = self._limits.directions
        schema = {
            "type": "object",
            "properties": {
                "diagnosis": {"type": "string", "maxLength": 600},
                "directions": {
                    "type": "array", "minItems": min(2, wanted), "maxItems": wanted,
                    "items": {"type": "string", "minLength": 10, "maxLength": DIRECTION},
                },
            },
            "required": ["diagnosis", "directions"],
            "additionalProperties": False,
        }  # fmt: skip
        try:
            reply = self._model.complete(self._question(memory, brief, why), schema=schema, max_tokens=MAX_TOKENS)
        except ModelFailed as failure:
            return [], failure.calls
        try:
            data = json.loads(reply.message.content)
            found = [one for one in data["directions"] if same_idea(one)]
            return found[:wanted], reply.calls
        except (ValueError, KeyError, TypeError):  # a model that is not held to schemas: the rule does it
            return [], reply.calls

    def _question(self, memory: AgentMemory, brief: Brief, why: str) -> tuple[Message, ...]:
        task = brief.task
        lineage = ""
        if self._lineage is not None:
            lines = [version_line(one) for one in self._lineage.versions(12, "best")]
            lineage = "\n\n## Best versions\n" + "\n".join(lines)
        text = (
            f"## Task {task.name}\n{task.description}\n\n## Why you are asked\n{why}{lineage}\n\n## Attempts\n"
            f"{memory.text()}\n\nGive {self._limits.directions} directions."
        )
        return (Message("system", SYSTEM, stable=True), Message("user", text))


def by_rule(records: Sequence[Record], brief: Brief, count: int) -> list[str]:
    """Directions that need no model: different from each other, and from what was tried most."""
    words = [same_idea(one.idea) for record in records for one in record.tried]
    words += [same_idea(record.strategy) for record in records if record.strategy]
    words += [same_idea(one.name) for one in brief.parent.strategies]
    said = [set(one.split()) for one in words]
    families = {family: [name for name, spec in CATALOGUE.items() if spec.family == family] for family in FAMILIES}
    keys = {family: [set(same_idea(name).split()) for name in names] for family, names in families.items()}
    used = {family: sum(any(key <= one for key in found) for one in said) for family, found in keys.items()}
    least = sorted(FAMILIES, key=lambda family: used[family])
    found = [
        "Profile the best version on its slowest case first, name the one limit that the table shows, and change only "
        "what moves that limit.",
        "Start from an earlier version of a different structure (lineage, show_version with save_to), bring what was "
        "learnt since to it, and compare the two.",
    ]
    for family in least:
        names = ", ".join(families[family][:4])
        if names and family != "repair":
            found.append(f"Leave what was tried; work on {family} (for instance {names}), which was tried least.")
    start = len(records) % max(len(found), 1)
    return [*found[start:], *found[:start]][:count]
