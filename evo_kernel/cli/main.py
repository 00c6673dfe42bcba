"""`evo-kernel`: the command line. Commands are imported when they are called, so that help and status start fast."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click

from evo_kernel.errors import EvoKernelError, UserError


class LazyGroup(click.Group):
    """`commands_in`: a package, and of each command the module in it and its line in the help.

    A command is called there as it is here, with underscores.
    """

    def __init__(self, *given: Any, commands_in: tuple[str, Mapping[str, tuple[str, str]]], **named: Any) -> None:
        super().__init__(*given, **named)
        self._package, self._listed = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self._listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self._listed:
            return None
        module = importlib.import_module(f"{self._package}.{self._listed[cmd_name][0]}")
        return getattr(module, cmd_name.replace("-", "_"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from their summaries, so that help imports none of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._listed.items()])


COMMANDS = {
    "run": ("run", "Search for a faster kernel."),
    "resume": ("run", "Continue a search where it stopped."),
    "confirm": ("run", "Confirm one candidate on the hidden cases, without a search."),
    "status": ("show", "Show the progress of a run, also while it runs."),
    "show": ("show", "Show one candidate: score, evidence, source, diff to its parent."),
    "tree": ("show", "Show the lineage: as text, as a picture, or as a graph file."),
    "report": ("show", "Write a run as one HTML or Markdown document."),
    "serve": ("serve", "Show populations in a browser: read-only, live, on this machine only."),
    "export": ("export", "Write the champions as a package that models can use."),
    "champions": ("champions", "The gallery: list, show, verify and export the kernels that come along."),
    "compile": ("compile", "Show what the machine code of kernels needs and does, without a GPU."),
    "verify": ("verify", "Check and score one kernel file against a task."),
    "judge": ("judge", "Judge for searches elsewhere: serve the folder between them and this machine."),
    "replay": ("verify", "Check and time a plan file without running its author's code."),
    "profile": ("verify", "Show what each kernel of a file does with the GPU."),
    "tasks": ("tasks", "List, show, check, make, import and export tasks."),
    "suite": ("suite", "Search for many tasks, each within a budget, with one report."),
    "knowledge": ("knowledge", "Search what agents can look up: notes, the installed Triton, your own folders."),
    "ask": ("agent", "Ask a population for an attempt: a brief as JSON."),
    "tell": ("agent", "Hand in a kernel for an attempt, and get its verdict."),
    "mcp": ("agent", "Serve the workbench to coding agents over MCP."),
    "train": ("train", "Grow a tree of transitions, and train policies and coders on it."),
    "doctor": ("doctor", "Check what this machine can do, and what to fix."),
}
"""Name -> module in this package and summary."""


@click.command(
    cls=LazyGroup,
    commands_in=("evo_kernel.cli", COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 a kernel did not pass, or nothing was found; 2 a mistake that you can correct; "
    "3 the machine failed; 130 interrupted.",
)
@click.version_option(package_name="evo-kernel")
def cli() -> None:
    """Turn a PyTorch function into the fastest verified GPU kernel, by an evolutionary search.

    Start with `evo-kernel run softmax`, or with a file of your own: `evo-kernel tasks new my_op.py`, then
    `evo-kernel run my_op.py`. No GPU and no key are needed; without a GPU, times are modeled and say so.
    """


def main() -> None:
    """Entry point: one place where mistakes become sentences and exit codes."""
    # Small matrices in many threads: BLAS threads that fight each other cost 50 times what they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        refuse_impostors()
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        _end("interrupted", 130)
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except EvoKernelError as error:
        _end(f"error: {error}", error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of the output would fail again
        with contextlib.suppress(OSError):
            _end(f"error: {error}: what was kept before is kept", 3)
        sys.exit(3)


def entry_point() -> None:
    """`main` in a process of its own, which ends sooner."""
    code: object = 0
    cut_off = False
    try:
        main()
    except SystemExit as ended:
        code, cut_off = ended.code or 0, type(ended) is not SystemExit  # it is processes.CutOff
    if isinstance(code, int) and "torch" in sys.modules:
        from evo_kernel.processes import leave, leave_at_once

        (leave_at_once if cut_off else leave)(code)
    sys.exit(code)  # pyright: ignore[reportArgumentType]  as it came


def _terminated(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C, so that children and files are closed on the way out; commands that do more have their own."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def refuse_impostors() -> None:
    """`operators` and `populations` are common names: refuse to run on somebody else's. Raises UserError."""
    home = Path(__file__).resolve().parents[2]
    for name in ("operators", "populations"):
        spec = importlib.util.find_spec(name)
        place = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if place is None or place != home / name / "__init__.py":
            raise UserError(
                f"the package {name} would be imported from {place or 'nowhere'}, not from {home / name}. "
                f"Rename that folder, or run from another one."
            )


def _end(message: str, code: int) -> None:
    from evo_kernel.types import escaped

    click.echo(escaped(message), err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
