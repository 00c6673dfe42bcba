"""Tools over what is known: the lineage with scores, earlier sources and differences, and the knowledge base."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.types import ScoredCandidate
from evo_kernel.types.notes import VersionOrder
from operators.knowledge.base import KnowledgeBase
from operators.prompts.evidence import strategy_line
from operators.workbench.file_tools import PATH
from operators.workbench.formatting import told, version_line
from operators.workbench.protocols import WorkbenchLineage
from operators.workbench.tool import ToolFailed, ToolResult, WorkTool, schema
from operators.workbench.workspace import Workspace

VERSIONS = 20
NUMBER = {"type": "integer", "minimum": 1, "description": "the number of a version: 17 for C17"}


def lineage_tools(workspace: Workspace, lineage: WorkbenchLineage) -> Iterator[WorkTool]:
    def listed(arguments: Mapping[str, Any]) -> ToolResult:
        order: VersionOrder = arguments.get("order", "best")
        with _asking():
            found = lineage.versions(arguments.get("limit", VERSIONS), order, arguments.get("of"))
        return ToolResult("\n".join(version_line(one) for one in found) or "no version is judged yet")

    def shown(arguments: Mapping[str, Any]) -> ToolResult:
        relative = _version(lineage, arguments["version"])
        if "save_to" in arguments:
            name = workspace.write(arguments["save_to"], relative.source.text)
            return ToolResult(f"C{relative.candidate} is in {name} now, {len(relative.source.text.splitlines())} lines")
        path = ", then ".join(strategy_line(one) for one in relative.strategies[-12:]) or "the first kernel"
        verdict = told(relative.evaluation, f"C{relative.candidate}") if relative.evaluation else "not judged yet"
        return ToolResult(f"{verdict}\nstrategies on the way, oldest first: {path}\n\n{relative.source.text}")

    def differing(arguments: Mapping[str, Any]) -> ToolResult:
        before = _version(lineage, arguments["older"])
        if ("newer" in arguments) == ("path" in arguments):
            raise ToolFailed("name either `newer`, a version, or `path`, a file of your workspace")
        if "path" in arguments:
            name, text = arguments["path"], workspace.read(arguments["path"])
        else:
            other = _version(lineage, arguments["newer"])
            name, text = f"C{other.candidate}", other.source.text
        lines = difflib.unified_diff(
            before.source.text.split("\n"), text.split("\n"), f"C{before.candidate}", name, lineterm=""
        )
        return ToolResult("\n".join(lines) or "they are the same")

    yield WorkTool(
        "lineage", "Committed versions with their scores (baseline ÷ kernel, larger is faster) and gains. order: best "
        "first, newest first, or path: from the first kernel to version `of` (the best if left out).",
        schema(order={"type": "string", "enum": ["best", "newest", "path"]},
               limit={"type": "integer", "minimum": 1, "maximum": 100}, of=NUMBER), listed,
    )  # fmt: skip
    yield WorkTool(
        "show_version", "A version's verdict, strategies and source. save_to writes the source to a file of your "
        "workspace instead of showing it.",
        schema(("version",), version=NUMBER, save_to=PATH), shown,
    )  # fmt: skip
    yield WorkTool(
        "diff_versions", "What changed from one version to another, or to a file of your workspace.",
        schema(("older",), older=NUMBER, newer=NUMBER, path=PATH), differing,
    )  # fmt: skip


def knowledge_tools(knowledge: KnowledgeBase) -> Iterator[WorkTool]:
    def searched(arguments: Mapping[str, Any]) -> ToolResult:
        found = knowledge.search(arguments["query"], arguments.get("k", 4), 3000)
        parts = [f"### {one.title} ({one.source})\n{one.text}" for one in found]
        return ToolResult("\n\n".join(parts) or "nothing fits; try other words, or the name of what you would call")

    yield WorkTool(
        "knowledge", "Search notes on kernels for this GPU and the API of the installed Triton and Gluon.",
        schema(("query",), query={"type": "string", "minLength": 1, "maxLength": 500},
               k={"type": "integer", "minimum": 1, "maximum": 8}), searched,
    )  # fmt: skip


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """A user's error is the agent's here: it named a version that does not exist."""
    try:
        yield
    except UserError as error:
        raise ToolFailed(str(error)) from None


def _version(lineage: WorkbenchLineage, number: int) -> ScoredCandidate:
    with _asking():
        return lineage.version(number)
