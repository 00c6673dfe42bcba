"""The tools of a shift as an MCP server: stdio, or streamable HTTP on loopback behind a bearer token.

A tool's call runs in a thread of its own and is never cut short by its client: one that is slow, or gone, holds up
nobody but itself. Imported when a server is asked for only: the SDK is an extra of the package.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

import evo_kernel
from evo_kernel.app.mcp_session import Shift
from operators.workbench.tool import ToolFailed, checked

SESSIONS = 32  # clients of HTTP at once
JUDGED = 16  # calls at once that wait for the judge, or for their turn
IDLE_S = 3600.0  # after which a client that went away without a word is forgotten
LARGEST = 2 * 2**20  # bytes of a request
PATH = "/mcp"
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


def server_of(shift: Shift) -> Server[Any]:
    """The protocol's side: every tool of the workbench, and two of the shift's own."""
    judged = anyio.CapacityLimiter(JUDGED)

    async def listed(context: Any, parameters: PaginatedRequestParams | None) -> ListToolsResult:
        del context, parameters
        tools = [
            Tool(name=tool.name, description=tool.description, input_schema=dict(tool.parameters))
            for tool in shift.attempt.bench.tools.values()
        ]
        return ListToolsResult(tools=[*OWN.values(), *tools])

    async def called(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
        del context
        work = functools.partial(_call, shift, parameters.name, parameters.arguments or {})
        found = shift.attempt.bench.tools.get(parameters.name)
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


def _call(shift: Shift, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """(text, whether it failed)."""
    if tool in OWN:
        try:
            given = checked(tool, OWN[tool].input_schema, arguments)
        except ToolFailed as failure:
            return f"Failed: {failure}", True
        return (shift.brief() if tool == "brief" else shift.give_up(given["reason"])), False
    outcome = shift.call(tool, arguments)
    return outcome.text, outcome.failed


async def over_stdio(shift: Shift) -> None:
    """Until standard input ends."""
    server = server_of(shift)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def over_http(shift: Shift, listening: socket.socket, token: str) -> None:
    """Until it is cancelled. `listening`: bound to loopback already."""
    app = server_of(shift).streamable_http_app(
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
