"""What the prompts of a run are made of, and what it learns for later runs: memory, lessons, transfer, knowledge."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from evo_kernel.config import Config
from evo_kernel.errors import ConfigError
from evo_kernel.types import Source, TaskCard
from operators.macro.memory import StrategyMemory, read_lessons, write_lessons

if TYPE_CHECKING:
    from operators.knowledge.base import KnowledgeBase
    from operators.prompts.writer import Profile, Prompts
    from populations.population import LineagePopulation


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

    memory = memory if memory is not None else memory_of(config)
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
    from operators.prompts.transfer import transfer_hint
    from populations.reading import PopulationReader

    with PopulationReader(config.start_from) as reader:
        found = reader.leader()
        if found is None:
            return "", None
        best = reader.relative(found.candidate)
        if not (hint := transfer_hint(reader.task, best, task)):
            return "", None
    return hint, best.source


def memory_of(config: Config) -> StrategyMemory:
    """With the lessons of other runs that the configuration names. Raises UserError."""
    keep = config.agents.keep_lessons
    if keep is not None and keep in config.agents.lessons:
        raise ConfigError(
            f"agents.keep_lessons would write over {keep}, which agents.lessons reads: keep them in another file, and "
            "let the next run read both."
        )
    if keep is not None and not keep.absolute().parent.is_dir():
        raise ConfigError(f"agents.keep_lessons: there is no folder {keep.absolute().parent}; make it first.")
    return StrategyMemory(lesson for path in config.agents.lessons for lesson in read_lessons(path))


def elsewhere_of(config: Config, population: LineagePopulation) -> Callable[[TaskCard], str]:
    """What other populations have to say, for agents outside of a run's loop. Raises UserError."""
    memory = memory_of(config)
    for credit in population.credits():  # what was tried here often enough needs no word of others
        memory.learn(credit)
    return prompts_of(config, population.task, None, memory).elsewhere


@contextlib.contextmanager
def lessons_kept(config: Config, memory: StrategyMemory, task: TaskCard, tell: Callable[[str], None]) -> Iterator[None]:
    """Write what strategies have earned when the run ends, where that is asked for."""
    yield
    path = config.agents.keep_lessons
    if path is None:
        return
    try:
        write_lessons(path, memory.lessons(task))
    except OSError as error:  # what was found is in the population: no reason to end with an error
        tell(f"the lessons could not be written to {path}: {error.strerror}")
