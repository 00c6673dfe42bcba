"""The tools of one attempt after another as an MCP server on standard input and output.

Imported only by `mcp`: the SDK is an extra of the package.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import anyio
from mcp.server.stdio import stdio_server
from mcp_types import Tool

from evo_kernel.app import external_session
from evo_kernel.app.compose import Prepared
from evo_kernel.app.mcp_session import McpSession
from evo_kernel.app.mcp_tools import server_of
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import ToolFailed, checked

LAST_S = 5.0
"""Seconds that a call under way is given to end, once the server is told to stop."""
INSTRUCTIONS = (
    "You improve one GPU kernel. Call `brief` first: it holds the rules, the task, kernel to beat and its evidence. "
    "Edit kernel.py with the file tools, try it with `probe` and `evaluate`, and hand it in with `submit`: what is "
    "correct and surely faster becomes a version of the lineage, and a new attempt begins."
)
OWN = {
    "brief": Tool(
        name="brief",
        description="All that there is to know of the attempt at hand: rules, hardware, task, the parent's source and "
        "evidence, relatives, what was tried. Read it first, and after each commit.",
        input_schema={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    ),
    "give_up": Tool(
        name="give_up",
        description="End this attempt with nothing and begin another one, perhaps from another parent.",
        input_schema={
            "type": "object",
            "properties": {"reason": {"type": "string", "minLength": 3, "maxLength": 300}},
            "required": ["reason"],
            "additionalProperties": False,
        },
    ),
}


def serve(
    population: Path, folder: Path, allowed: Allowed, device: str | None, wait_s: float, say: Callable[[str], None]
) -> NoReturn:
    """Until standard input ends, or a signal. Ends the process."""
    config = external_session.last_config(population, device)
    ending = Ending()
    with external_session.judged(population, config, wait_s, say) as opened:
        ending.parts = opened.parts
        knowledge = KnowledgeBase(config.knowledge.folders)
        session = McpSession(opened, folder, allowed, knowledge)
        say(f"attempt {session.number} of {population}; serving on standard input and output")
        anyio.run(over_stdio, session)
        ending.now(0)


def _call(session: McpSession, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    if tool in OWN:
        try:
            given = checked(tool, OWN[tool].input_schema, arguments)
        except ToolFailed as failure:
            return f"Failed: {failure}", True
        return (session.brief() if tool == "brief" else session.give_up(given["reason"])), False
    outcome = session.call(tool, arguments)
    return outcome.text, outcome.failed


async def over_stdio(session: McpSession) -> None:
    """Until standard input ends."""
    server = server_of(lambda: session.attempt.bench.tools, functools.partial(_call, session), OWN, INSTRUCTIONS)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


class Ending:
    """Ends the process even where a client does not read, or the judge is busy."""

    def __init__(self) -> None:
        self.parts: Prepared | None = None  # to be closed
        self._lock = threading.Lock()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def now(self, code: int) -> NoReturn:
        """Close the judge (what it has under way ends as the machine's failure), then the file, then end."""
        with self._lock:  # once
            for part in (self.parts.judge, self.parts.population) if self.parts is not None else ():
                closing = threading.Thread(target=part.close, daemon=True)
                closing.start()
                closing.join(LAST_S)
            sys.stderr.flush()
            os._exit(code)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        threading.Thread(target=self.now, args=(130,), daemon=True).start()
