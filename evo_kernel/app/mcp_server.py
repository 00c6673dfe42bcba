"""One attempt after another over the Model Context Protocol, on standard input and output.

A submission becomes a candidate, and the next attempt begins. An attempt is a ticket: when this process ends in the
middle, the next one goes on with it, files and counts as they were. Each call of a tool runs in a thread of its own, so
that a slow one holds up no other. Imported only by `mcp`: the SDK is an extra.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import anyio
import anyio.to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

import evo_kernel
from evo_kernel.app import external_session
from evo_kernel.app.compose import Prepared
from evo_kernel.app.external_session import ExternalSession
from evo_kernel.app.workbench import open_workbench, rooms_of
from operators.external import ExternalAttempt, brief_text, limits_text
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import ToolFailed, WorkTool, checked
from operators.workbench.toolset import ToolOutcome
from populations.reading import PopulationReader

OPERATOR = "external"
HOLDER = "mcp"


class McpSession:
    """Thread-safe. `folder`: below it each attempt has its files."""

    def __init__(
        self,
        session: ExternalSession,
        folder: Path,
        allowed: Allowed,
        knowledge: KnowledgeBase | None,
    ) -> None:
        self._session, self._population, self._folder = session, session.population, folder
        self._allowed, self._knowledge = allowed, knowledge
        # What is spent is booked turn by turn.
        self._rooms = rooms_of(self._population, session.parts.judge, knowledge, lambda spent: None)
        self._lock = threading.Lock()
        for recorded in self._population.pending():  # what an earlier process left unjudged: parents need evidence
            session.judge(recorded)
        self._begin()

    @property
    def number(self) -> int:
        return self.attempt.brief.attempt

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """What a tool answers; where it ends the attempt, what came of that and of the next one stands in the text."""
        outcome = self.attempt.call(tool, arguments)  # not under our lock: what only reads waits for no judge
        if outcome.submission is None:
            return outcome
        with self._lock:  # an attempt commits once
            return ToolOutcome(f"{outcome.text}\n{self._committed()}", submission=outcome.submission)

    def brief(self) -> str:
        """All that an agent must know of the attempt at hand."""
        with self._lock:
            head = f"# Attempt {self.number}: {limits_text(self._allowed)}\n{self.attempt.bench.left()}"
            brief = self.attempt.brief
            return f"{head}\n\n{brief_text(brief, self._knowledge)}"

    def give_up(self, reason: str) -> str:
        """End the attempt with nothing, and begin another one."""
        with self._lock:
            over = self.number
            self.attempt.close()
            if self.attempt.submission is not None:
                return f"Attempt {over} has just committed a version: there is nothing to give up. Read `brief` again."
            self._population.fail(self.attempt.brief, OPERATOR, reason)
            return f"Attempt {over} is given up. {self._next()}"

    # ---- within ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with PopulationReader(self._population.path) as reader:
            mine = [one.attempt for one in reader.tickets() if one.holder == HOLDER]
        brief = self._population.ticket(mine[0])[0] if mine else self._population.ask(HOLDER)
        folder = self._folder / f"attempt-{brief.attempt}"
        bench = open_workbench(folder, self._rooms, brief, OPERATOR, self._allowed, adopt=folder.is_dir())
        self.attempt = ExternalAttempt(brief, bench, self._population.diary, OPERATOR)
        if self.attempt.submission is not None:  # the process ended between the gate and the candidate
            self._committed()

    def _committed(self) -> str:
        told = self._session.submit(self.attempt.brief, self.attempt.proposal())
        gain = f", {told.gain_text}" if told.gain_text else ""
        return f"It is version C{told.recorded.candidate}{gain}. {self._next()}"

    def _next(self) -> str:
        """Begin the next attempt; what to do about it."""
        shutil.rmtree(self._folder / f"attempt-{self.number}", ignore_errors=True)
        self._begin()
        parent = self.attempt.brief.parent.candidate
        return (
            f"Attempt {self.number} has begun: kernel.py holds version C{parent} now, and every limit starts anew. "
            "Read `brief` again."
        )


JUDGED = 16  # calls at once that wait for the judge, or for their turn
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


def server_of(
    tools: Callable[[], Mapping[str, WorkTool]],
    call: Callable[[str, Mapping[str, Any]], tuple[str, bool]],
    own: Mapping[str, Tool],
    instructions: str,
) -> Server[Any]:
    """The protocol's side. `tools`: of the workbench at hand. `own`: of the session besides. `call`: of either kind, by
    name and arguments: the text, and whether it failed."""
    judged = anyio.CapacityLimiter(JUDGED)

    async def listed(context: Any, parameters: PaginatedRequestParams | None) -> ListToolsResult:
        del context, parameters
        shown = [
            Tool(name=tool.name, description=tool.description, input_schema=dict(tool.parameters))
            for tool in tools().values()
        ]
        return ListToolsResult(tools=[*own.values(), *shown])

    async def called(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
        del context
        work = functools.partial(call, parameters.name, parameters.arguments or {})
        found = tools().get(parameters.name)
        room = judged if found is not None and found.slow else None  # however many wait for the judge, others read
        text, failed = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=room)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    return Server(
        "evo-kernel",
        version=evo_kernel.version(),
        instructions=instructions,
        on_list_tools=listed,
        on_call_tool=called,
    )


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
