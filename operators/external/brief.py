"""What an agent is told at the start, in one text: the same in a folder's README and over MCP."""

from __future__ import annotations

from evo_kernel.types import Brief
from operators.knowledge.base import KnowledgeBase
from operators.prompts.parts import joined
from operators.prompts.writer import Prompts
from operators.workbench.judge_tools import Allowed


def brief_text(brief: Brief, knowledge: KnowledgeBase | None = None, elsewhere: str = "") -> str:
    """Rules, hardware, task, then the parent with its evidence, relatives, what was tried, passages.

    `elsewhere`: what other populations have to say.
    """
    prompts = Prompts(knowledge=knowledge)
    source = brief.parent.source
    prefix = prompts.system(brief.task, brief.environment).content
    if elsewhere:
        prefix = f"{prefix}\n\n{elsewhere}"
    query = f"{brief.task.name} {brief.task.description}"
    return f"{prefix}\n\n{joined(prompts.situation(brief, source, query=query))}\n"


def limits_text(allowed: Allowed) -> str:
    """What an attempt may ask for, in a line."""
    return (
        f"at most {allowed.evaluations} evaluations, {allowed.probes} probes, {allowed.profiles} profiles and "
        f"{allowed.submits} submissions in this attempt"
    )
