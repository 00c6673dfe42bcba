"""The workbench over the Model Context Protocol: our server in a process, the SDK's own client, a real judge."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

import psutil
from mcp import Client, StdioServerParameters

from evo_kernel.cli.main import cli
from populations.connect import fetch_one, owner
from populations.reading import PopulationReader
from tests.cli.test_asking import TASK
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {
    "brief", "give_up", "list_files", "read_file", "search_files", "write_file", "edit_file", "evaluate", "probe",
    "compile", "profile", "submit", "lineage", "show_version", "diff_versions", "knowledge", "note", "notes", "refute_note",
}  # fmt: skip


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "squash.py").write_text(TASK)
    path = folder / "squash.db"
    cheap = [
        "--first",
        "auto",
        "--set",
        "budget.evaluations=0",
        "--set",
        "judge.tune_plans=0",
        "--population",
        str(path),
    ]
    ended = CliRunner().invoke(cli, ["run", str(folder / "squash.py"), "--device", "cpu", "--json", *cheap])
    assert ended.exit_code == 0, ended.output
    return path


def server(population: Path) -> StdioServerParameters:
    python, *words = script("-m", "evo_kernel.cli.main", "mcp", population, "--device", "cpu")
    return StdioServerParameters(command=python, args=words, env={"PYTHONPATH": str(ROOT)})


async def text(client: Client, tool: str, failed: bool = False, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert bool(result.is_error) == failed, result
    return result.content[0].text


async def use_every_tool(client: Client) -> None:
    """Lists them, calls each, and says what an agent would want to see."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == TOOLS
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in listed.values())
    brief = await text(client, "brief")
    assert "torch.tanh(x - 2.0 * y)" in brief and "Source of the parent" in brief and "left: " in brief
    assert "kernel.py" in await text(client, "list_files")
    assert "def run(" in await text(client, "read_file", path="kernel.py")
    assert "kernel.py:" in await text(client, "search_files", text="def run(")
    assert "wrote notes.md" in await text(client, "write_file", path="notes.md", text="plan\n")
    edit = {"search": "plan", "replace": "a better plan"}
    assert "1 of 1 edits" in await text(client, "edit_file", path="notes.md", edits=[edit])
    assert "Correct" in await text(client, "probe")
    assert " registers, 0 B spilled" in await text(client, "compile", sass="kernel.sass")
    assert "EXIT" in await text(client, "search_files", text="exit", path="kernel.sass")
    evaluated = await text(client, "evaluate", idea="the kernel as it is")
    name = re.match(r"(E\d+\.\d+): Correct; score", evaluated)
    assert name is not None and "would refuse" in evaluated
    assert "bound by" in await text(client, "profile")
    assert "you started from" in await text(client, "submit", True, idea="nothing new", strategy="none-at-all")
    assert "C1 [seed] passed" in await text(client, "lineage")
    assert "def run(" in await text(client, "show_version", version=1)
    assert await text(client, "diff_versions", older=1, path="kernel.py")
    assert "evo-kernel/" in await text(client, "knowledge", query="masks of loads")
    cited = [{"evaluation": name[1], "samples": 0}]
    kept = re.match(
        r"note (\d+) is kept", await text(client, "note", text="the parent is bound by memory", evidence=cited)
    )
    assert kept is not None and "bound by memory" in await text(client, "notes")
    told = await text(client, "refute_note", note=int(kept[1]), why="it was written for a test", evidence=cited)
    assert "is refuted by" in told
    # what is wrong is told, and ends nothing
    assert "there is no tool" in await text(client, "no_such_tool", True)
    assert "takes" in await text(client, "evaluate", True, idea=3)
    assert "'reason' is a required property" in await text(client, "give_up", True)
    assert "brief takes no 'attempt'; it takes no arguments" in await text(client, "brief", True, attempt=3)


@pytest.fixture(scope="module")
def spent(population: Path) -> Path:
    """The population after every tool was used over stdio: one evaluation and one probe."""

    async def talk() -> None:
        async with Client(server(population)) as client:
            assert client.instructions and "brief" in client.instructions
            await use_every_tool(client)

    asyncio.run(talk())
    return population


def test_every_tool_over_stdio(spent: Path) -> None:
    assert waits_for_nobody(spent)
    with PopulationReader(spent) as reader:
        (ticket,) = reader.tickets()  # the attempt at hand outlives the server
        assert ticket.holder == "mcp"


def test_the_next_server_goes_on_with_the_attempt_and_gives_it_up(spent: Path) -> None:
    async def talk() -> None:
        async with Client(server(spent)) as client:
            before = await text(client, "brief")
            assert "left: 39 evaluations, 199 probes" in before  # what was spent stays spent
            assert "is given up. Attempt" in await text(client, "give_up", reason="try another parent")
            after = await text(client, "brief")
            assert after.splitlines()[0] != before.splitlines()[0]

    asyncio.run(talk())
    assert waits_for_nobody(spent)
    with PopulationReader(spent) as reader:
        assert fetch_one(reader.connection, "SELECT reason FROM failures ORDER BY attempt DESC") == "try another parent"
        assert reader.status().pending == 0


def test_a_server_in_the_middle_of_a_call_ends_cleanly(population: Path) -> None:
    async def talk() -> None:
        async with Client(server(population)) as client:
            edits = [{"search": "import torch", "replace": "import torch  # touched"}]
            await text(client, "edit_file", path="kernel.py", edits=edits)
            call = asyncio.get_running_loop().create_task(client.call_tool("evaluate", {"idea": "cut off"}))
            await asyncio.sleep(0.5)
            (child,) = [one for one in psutil.Process().children() if str(population) in one.cmdline()]
            child.send_signal(signal.SIGTERM)
            told.append(time.monotonic())
            call.cancel()

    told: list[float] = []
    with contextlib.suppress(Exception):  # the server is gone under the client: however it says so
        asyncio.run(talk())
    assert waits_for_nobody(population) and time.monotonic() - told[0] < 40
    with PopulationReader(population) as reader:
        assert reader.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(reader.tickets()) == 1 and reader.status().pending == 0


def waits_for_nobody(population: Path) -> bool:
    until = time.monotonic() + 15
    while owner(population) is not None and time.monotonic() < until:
        time.sleep(0.1)
    return owner(population) is None
