"""The tools of an attempt as an MCP server: stdio, or streamable HTTP on loopback behind a bearer token.

A tool's call runs in a thread of its own and is never cut short by its client: one that is slow, or gone, holds up
nobody but itself. Imported when a server is asked for only: the SDK is an extra of the package.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import anyio
import anyio.to_thread
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

import evo_kernel
from evo_kernel.app import external_session
from evo_kernel.app.compose import Prepared
from evo_kernel.app.mcp_session import McpSession
from evo_kernel.app.prompt_context import elsewhere_of
from evo_kernel.errors import UserError
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import ToolFailed, checked

SESSIONS = 32  # clients of HTTP at once
JUDGED = 16  # calls at once that wait for the judge, or for their turn
IDLE_S = 3600.0  # after which a client that went away without a word is forgotten
LARGEST = 2 * 2**20  # bytes of a request
PATH = "/mcp"
TOKEN = "EVO_KERNEL_MCP_TOKEN"
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
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def serve(
    population: Path, folder: Path, allowed: Allowed, device: str | None, wait_s: float,
    listening: socket.socket | None, say: Callable[[str], None],
) -> NoReturn:  # fmt: skip
    """Until standard input ends, or a signal; over HTTP where there is a socket. Ends the process."""
    config = external_session.last_config(population, device)
    ending = Ending()
    with external_session.judged(population, config, wait_s, say) as opened:
        ending.parts = opened.parts
        knowledge, elsewhere = KnowledgeBase(config.knowledge.folders), elsewhere_of(config, opened.population)
        session = McpSession(opened, folder, allowed, knowledge, elsewhere)
        said = f"attempt {session.number} of {population}; serving"
        if listening is None:
            say(f"{said} on standard input and output")
            anyio.run(over_stdio, session)
        else:
            ending.token = population.with_name(population.name + ".mcp-token")
            token, where = token_for(ending.token)
            say(f"{said} http://127.0.0.1:{listening.getsockname()[1]}{PATH}, {where}")
            anyio.run(over_http, session, listening, token)
        ending.now(0)


def server_of(session: McpSession) -> Server[Any]:
    """The protocol's side: every tool of the workbench, and two of the session's own."""
    judged = anyio.CapacityLimiter(JUDGED)

    async def listed(context: Any, parameters: PaginatedRequestParams | None) -> ListToolsResult:
        del context, parameters
        tools = [
            Tool(name=tool.name, description=tool.description, input_schema=dict(tool.parameters))
            for tool in session.attempt.bench.tools.values()
        ]
        return ListToolsResult(tools=[*OWN.values(), *tools])

    async def called(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
        del context
        work = functools.partial(_call, session, parameters.name, parameters.arguments or {})
        found = session.attempt.bench.tools.get(parameters.name)
        room = judged if found is not None and found.slow else None  # however many wait for the judge, others read
        text, failed = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=room)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    return Server(
        "evo-kernel",
        version=evo_kernel.version(),
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


def _call(session: McpSession, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """(text, whether it failed)."""
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
    server = server_of(session)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def over_http(session: McpSession, listening: socket.socket, token: str) -> None:
    """Until it is cancelled. `listening`: bound to loopback already."""
    app = server_of(session).streamable_http_app(
        streamable_http_path=PATH, max_request_body_size=LARGEST, session_idle_timeout=IDLE_S, max_sessions=SESSIONS
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        behind_token(app, token), log_config=None, access_log=False, timeout_keep_alive=30,
        limit_concurrency=4 * SESSIONS, timeout_graceful_shutdown=2, lifespan="on",
    )  # fmt: skip
    await _Quiet(config).serve([listening])


class _Quiet(uvicorn.Server):
    """Leaves signals to the command: what they end is more than a server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def behind_token(app: App, token: str) -> App:
    """Nothing of the app answers to whoever does not bear the token."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope.get("headers", [])).get(b"authorization", b"")
            if not hmac.compare_digest(given, expected):
                await _refuse(send)
                return
        await app(scope, receive, send)

    return guarded


async def _refuse(send: Send) -> None:
    body = b'{"error": "give the token: Authorization: Bearer TOKEN"}'
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b'Bearer realm="evo-kernel"'),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def token_for(path: Path) -> tuple[str, str]:
    """(token, where it is from in words). `path`: where one that is made is written. Raises UserError."""
    path.unlink(missing_ok=True)  # of a server that was killed
    given = os.environ.get(TOKEN, "")
    if given:
        if len(given) < 16 or not given.isascii() or not given.isprintable() or " " in given:
            raise UserError(
                f"{TOKEN} must have at least 16 printable characters and no space; unset it to have one made"
            )
        return given, f"with the token of {TOKEN}"
    token = secrets.token_urlsafe(32)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(token + "\n")
    return token, f"with the token in {path}"


class Ending:
    """Ends the process whatever hangs: a client that does not read, a judge in the middle of something."""

    def __init__(self) -> None:
        self.parts: Prepared | None = None  # to be closed
        self.token: Path | None = None  # to be removed: the file of a token that is good for this server alone
        self._lock = threading.Lock()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def now(self, code: int) -> NoReturn:
        """Close the judge (what it has under way ends as the machine's failure), then the file, then end."""
        with self._lock:  # once
            if self.token is not None:
                with contextlib.suppress(OSError):
                    self.token.unlink(missing_ok=True)
            for part in (self.parts.judge, self.parts.population) if self.parts is not None else ():
                closing = threading.Thread(target=part.close, daemon=True)
                closing.start()
                closing.join(LAST_S)
            sys.stderr.flush()
            os._exit(code)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        threading.Thread(target=self.now, args=(130,), daemon=True).start()
