"""`mcp`: the workbench for any coding agent that speaks the Model Context Protocol."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from evo_kernel.app.loopback import listen
from evo_kernel.errors import UserError

TOKEN = "EVO_KERNEL_MCP_TOKEN"
LAST_S = 5.0
"""Seconds that a call under way is given to end, once the server is told to stop."""


@click.command()
@click.argument("population", type=click.Path(path_type=Path))
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve streamable HTTP at http://127.0.0.1:PORT/mcp instead of stdio; 0 takes a free port.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where attempts have their files; POPULATION.mcp if left out."
)
@click.option("--evaluations", default=40, show_default=True, type=click.IntRange(1), help="Of one attempt, at most.")
@click.option("--submits", default=12, show_default=True, type=click.IntRange(1), help="Of one attempt, at most.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Judge elsewhere than the run did.")
@click.option(
    "--wait", "wait_s", default=10.0, show_default=True, type=click.FloatRange(0),
    help="Seconds to wait while another process writes the population.",
)  # fmt: skip
def mcp(
    population: Path,
    port: int | None,
    folder: Path | None,
    evaluations: int,
    submits: int,
    device: str | None,
    wait_s: float,
) -> None:
    """Serve the workbench of POPULATION to coding agents over the Model Context Protocol.

    An agent gets tools: brief, files, probe, evaluate, profile, submit, lineage, knowledge, notes. What it submits
    passes the commit gate or not; a commit becomes a candidate, and the next attempt begins. The attempt at hand
    outlives the server: the next one goes on with it. While it serves, nobody else writes the population.

    Needs the extra: pip install 'evo-kernel[mcp]'. Most agents start such a server themselves (stdio):

    \b
    {"mcpServers": {"evo-kernel": {"command": "evo-kernel", "args": ["mcp", "/path/softmax.db"]}}}

    Or serve HTTP, on loopback only. Every request must bear a token: EVO_KERNEL_MCP_TOKEN if it is set, else one that
    is made anew and written to POPULATION.mcp-token, readable by you alone, for as long as the server runs:

    \b
    evo-kernel mcp softmax.db --http 8765

    SIGTERM, SIGINT, and the end of standard input stop it; nothing that was told is lost.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UserError("`evo-kernel mcp` needs the Model Context Protocol's SDK: pip install 'evo-kernel[mcp]'")
    from evo_kernel.app import external_session
    from evo_kernel.app.mcp_session import Shift
    from evo_kernel.app.prompt_context import elsewhere_of
    from operators.knowledge.base import KnowledgeBase
    from operators.workbench.judge_tools import Allowed

    config = external_session.last_config(population, {"device": device})
    listening = listen(port) if port is not None else None
    ending = _Ending()
    with external_session.judged(population, config, wait_s, lambda line: click.echo(line, err=True)) as parts:
        ending.closes(parts)
        allowed = Allowed(evaluations=evaluations, submits=submits)
        place = folder or population.with_name(population.name + ".mcp")
        knowledge = KnowledgeBase(config.knowledge.folders)
        shift = Shift(parts, place, "mcp", allowed, knowledge, elsewhere_of(config, parts.population))
        _serve(shift, population, listening, ending)
        ending.now(0)


def _serve(shift: Any, population: Path, listening: socket.socket | None, ending: _Ending) -> None:
    from evo_kernel.app.mcp_server import PATH, over_http, over_stdio

    if listening is None:
        click.echo(f"attempt {shift.number} of {population}; serving on standard input and output", err=True)
        _run(lambda: over_stdio(shift))
        return
    path = population.with_name(population.name + ".mcp-token")
    token, where = _token(path)
    ending.removes(path)
    port = listening.getsockname()[1]
    click.echo(f"attempt {shift.number} of {population}; serving http://127.0.0.1:{port}{PATH}, {where}", err=True)
    _run(lambda: over_http(shift, listening, token))


def _run(serve: Callable[[], Awaitable[None]]) -> None:
    import anyio

    anyio.run(serve)


def _token(path: Path) -> tuple[str, str]:
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


class _Ending:
    """Ends the process whatever hangs: a client that does not read, a judge in the middle of something."""

    def __init__(self) -> None:
        self._parts: Any = None
        self._token: Path | None = None
        self._lock = threading.Lock()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def closes(self, parts: Any) -> None:
        self._parts = parts

    def removes(self, token: Path) -> None:
        """The file of a token that is good for this server alone."""
        self._token = token

    def now(self, code: int) -> None:
        """Close the judge (what it has under way ends as the machine's failure), then the file, then end."""
        with self._lock:  # once
            if self._token is not None:
                with contextlib.suppress(OSError):
                    self._token.unlink(missing_ok=True)
            if self._parts is not None:
                closing = threading.Thread(target=self._parts.judge.close, daemon=True)
                closing.start()
                closing.join(LAST_S)
                closing = threading.Thread(target=self._parts.population.close, daemon=True)
                closing.start()
                closing.join(LAST_S)
            sys.stderr.flush()
            os._exit(code)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        threading.Thread(target=self.now, args=(130,), daemon=True).start()
