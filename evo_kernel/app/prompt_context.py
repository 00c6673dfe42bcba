"""What the prompts of a run are made of: memory, transfer, knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evo_kernel.config import Config
from evo_kernel.types import Source, TaskCard
from operators.macro.memory import StrategyMemory

if TYPE_CHECKING:
    from operators.knowledge.base import KnowledgeBase
    from operators.prompts.writer import Profile, Prompts


def knowledge_of(config: Config) -> KnowledgeBase | None:
    """What can be looked up. Raises UserError for a folder that is not there."""
    from operators.knowledge.base import KnowledgeBase

    return KnowledgeBase(config.knowledge.folders) if config.agents.knowledge else None


def prompts_of(
    config: Config,
    task: TaskCard,
    knowledge: KnowledgeBase | None,
    memory: StrategyMemory | None = None,
    profile: Profile | None = None,
) -> Prompts:
    """What all prompts of a run share. Raises UserError for files that are not there."""
    from operators.prompts.writer import Prompts

    hint, example = origin_of(config, task)
    return Prompts(
        hierarchy=config.agents.hierarchy, knowledge=knowledge, memory=memory, profile=profile, hint=hint,
        example=example,
    )  # fmt: skip


def origin_of(config: Config, task: TaskCard) -> tuple[str, Source | None]:
    """What prompts say of the population that this one started from, and its best kernel as it was scored there.

    Nothing where it started from none, or from one of the same task, or where that file is gone by now.
    """
    if config.start_from is None or not config.start_from.is_file():
        return "", None
    from operators.prompts.writer import transfer_hint
    from populations.reading import PopulationReader

    with PopulationReader(config.start_from) as reader:
        found = reader.leader()
        if found is None:
            return "", None
        best = reader.relative(found.candidate)
        if not (hint := transfer_hint(reader.task, best, task)):
            return "", None
    return hint, best.source
