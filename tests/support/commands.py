"""Commands as a user gives them: in this process, by their entry point, or each in a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from evo_kernel.cli.main import cli, main

ROOT = Path(__file__).resolve().parents[2]
Ended = subprocess.CompletedProcess[str]


def evo(*arguments: object, stdin: str | None = None) -> Result:
    """One command, in this process: importing torch once is what makes this affordable."""
    ended = CliRunner().invoke(cli, [str(word) for word in arguments], input=stdin)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended


def told(ended: Result) -> dict:
    """The one JSON object on standard output."""
    assert ended.stdout.count("\n") == 1, ended.stdout
    return json.loads(ended.stdout)


def evo_process(*arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Ended:
    """One command in a process of its own: what it imports, prints last and returns is what a user gets."""
    return child("-m", "evo_kernel.cli.main", *map(str, arguments), cwd=cwd, env=env or {})


def child(*arguments: str, cwd: Path = ROOT, env: dict[str, str]) -> Ended:
    """A Python process."""
    return subprocess.run(
        [sys.executable, *arguments],
        check=False, cwd=cwd, capture_output=True, text=True, timeout=120,
        env=os.environ | {"COLUMNS": "160"} | env,
    )  # fmt: skip


def evo_main(*arguments: object, env: dict[str, str] | None = None) -> Ended:
    """One command by its entry point, in this process: mistakes are sentences by then, as a user gets them."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in "12")
    terminated, code = signal.getsignal(signal.SIGTERM), 0
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
        patched.setattr(sys, "argv", ["evo-kernel", *map(str, arguments)])
        for name, value in ({"COLUMNS": "160"} | (env or {})).items():
            patched.setenv(name, value)
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            signal.signal(signal.SIGTERM, terminated)
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Ended(arguments, code, *said)
