"""The workbench's tools over the Model Context Protocol, and one attempt's on a port of this machine.

Each call of a tool runs in a thread of its own, so that a slow one holds up no other. Imported only where it is needed:
the SDK is an extra of the package.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

import evo_kernel
from operators.external import ExternalAttempt
from operators.workbench.tool import WorkTool

JUDGED = 16  # calls at once that wait for the judge, or for their turn
LAST_S = 5.0  # that the server is given to end


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


@contextlib.contextmanager
def over_http(attempt: ExternalAttempt) -> Iterator[str]:
    """Serves the workbench of one attempt on a port of this machine; gives the URL, which holds a secret."""

    def call(tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        outcome = attempt.call(tool, arguments)
        return outcome.text, outcome.failed

    path = f"/{secrets.token_urlsafe(32)}"
    server = server_of(lambda: attempt.bench.tools, call, {}, "README.md in your folder says what to do.")
    app = server.streamable_http_app(streamable_http_path=path, stateless_http=True, json_response=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical", timeout_graceful_shutdown=1))
        serving = threading.Thread(target=http.run, kwargs={"sockets": [listening]}, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}{path}"
        finally:
            http.should_exit = True
            serving.join(LAST_S)
