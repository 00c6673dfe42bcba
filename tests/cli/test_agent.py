"""What `evo-kernel agent` returns to a script."""

from __future__ import annotations

import pytest

from evo_kernel.app.run_config import without_command
from evo_kernel.budget import Spent
from evo_kernel.cli.agent import _exit_code
from evo_kernel.engine import RunSummary
from evo_kernel.types import Purpose, ScoredCandidate
from tests.support.scripted import FIRST, scored

BEFORE = ScoredCandidate(
    1, FIRST, 0, 0, scored(FIRST, Purpose.SCORE)
)  # a good kernel that was there before any agent came


@pytest.mark.parametrize(
    ("cause", "statuses", "code"),
    [
        ("budget", {}, 1),
        ("budget", {"wrong": 1}, 1),
        ("budget", {"passed": 1, "wrong": 1}, 0),
        ("interrupted", {}, 130),
        ("machine", {"passed": 1}, 3),
    ],
)
def test_zero_means_that_an_agent_committed_something(cause: str, statuses: dict[str, int], code: int) -> None:
    assert _exit_code(RunSummary("", cause, 1, statuses, {}, 1.0, Spent(), BEFORE)) == code


def test_no_command_travels_with_a_file() -> None:
    said: list[str] = []
    stored = {"width": 2, "external": {"command": "sh evil.sh", "minutes": 5.0}}
    assert without_command(stored, [], said.append) == {"width": 2, "external": {"minutes": 5.0}}
    assert "--set external.command='sh evil.sh'" in said[0]
    without_command(stored, ["external.command=mine"], said.append)
    assert len(said) == 1  # it was named again
