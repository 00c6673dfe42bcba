"""`serve`: populations in a browser."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
from pathlib import Path

import click

from evo_kernel.cli.options import PATH
from evo_kernel.errors import UserError

TOKEN = "EVO_KERNEL_SERVE_TOKEN"
NEEDED = ("starlette", "uvicorn", "pygments")


@click.command()
@click.argument("populations", type=PATH, nargs=-1, required=True, metavar="POPULATION...")
@click.option(
    "--port",
    default=8799,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port on 127.0.0.1; 0: a free one.",
)
def serve(populations: tuple[Path, ...], port: int) -> None:
    """Show POPULATIONs in a browser: best so far, archive, lineage, candidates.

    It only reads, so a run in progress is not disturbed, and pages follow it. Several files can be compared.

    Install it with: pip install 'evo-kernel[serve]'. It listens on this machine only. Every request needs the token in
    the printed address: EVO_KERNEL_SERVE_TOKEN (16 characters or more) if it is set, else a new one. From another
    machine:

    \b
    ssh -L 8799:127.0.0.1:8799 HOST

    Ctrl-C stops it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"`evo-kernel serve` needs {', '.join(missing)}: pip install 'evo-kernel[serve]'")
    from evo_kernel.dashboard.app import Dashboard

    token = _token()
    listening = listen(port)
    taken = listening.getsockname()[1]
    dashboard = Dashboard(populations, token, cookie=f"evo-kernel-{taken}")
    dashboard.look()
    click.echo(f"http://127.0.0.1:{taken}/?token={token}")
    click.echo("read-only, on this machine only; Ctrl-C stops it", err=True)
    _serve(dashboard.app, listening)


def listen(port: int) -> socket.socket:
    """On loopback only. Raises UserError."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise UserError(f"port {port} cannot be used ({error.strerror}): name another --port, or 0") from error
    return listening


def _serve(app: object, listening: socket.socket) -> None:
    """Until a signal. No log of requests: the first one bears the token."""
    import uvicorn

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # there is no proxy, and a header is anybody's word
        ws="none",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _token() -> str:
    given = os.environ.get(TOKEN, "")
    if not given:
        return secrets.token_urlsafe(24)
    if len(given) < 16 or not all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in given):
        raise UserError(f"{TOKEN} must have at least 16 letters, digits, - or _; unset it to have one made")
    return given
