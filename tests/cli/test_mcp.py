"""The workbench over the Model Context Protocol: our server in a process, the SDK's own client, a real judge."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from evo_kernel.cli.main import cli
from populations.connect import fetch_one
from populations.lock import owner
from populations.reading import PopulationReader
from tests.cli.test_asking import TASK

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-tests-own"
COMMAND = [sys.executable, "-P", "-m", "evo_kernel.cli.main", "mcp"]
TOOLS = {
    "brief", "give_up", "list_files", "read_file", "search_files", "write_file", "edit_file", "evaluate", "probe",
    "profile", "submit", "lineage", "show_version", "diff_versions", "knowledge", "note", "notes", "refute_note",
}  # fmt: skip


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "squash.py").write_text(TASK)
    path = folder / "squash.db"
    cheap = ["--set", "budget.evaluations=0", "--set", "judge.tune_plans=0", "--population", str(path)]
    ended = CliRunner().invoke(cli, ["run", str(folder / "squash.py"), "--device", "cpu", "--json", *cheap])
    assert ended.exit_code == 0, ended.output
    return path


@pytest.fixture
def served(population: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, address) of a server over HTTP."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "EVO_KERNEL_MCP_TOKEN": TOKEN}
    words = [*COMMAND, str(population), "--http", "0", "--device", "cpu"]
    child = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    for line in child.stderr:
        if found := re.search(r"serving (http://127\.0\.0\.1:\d+/mcp), with the token of EVO_KERNEL_MCP_TOKEN", line):
            yield child, found[1]
            break
    else:
        raise AssertionError(f"the server did not start: {child.wait()}")
    child.kill()
    child.wait()


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
        words = [*COMMAND[1:], str(population), "--device", "cpu"]
        server = StdioServerParameters(command=COMMAND[0], args=words, env={"PYTHONPATH": str(ROOT)})
        async with Client(server) as client:
            assert client.instructions and "brief" in client.instructions
            await use_every_tool(client)

    asyncio.run(talk())
    return population


def test_every_tool_over_stdio(spent: Path) -> None:
    assert waits_for_nobody(spent)
    with PopulationReader(spent) as reader:
        (ticket,) = reader.tickets()  # the attempt at hand outlives the server
        assert ticket.holder == "mcp"


async def over_http(address: str, token: str = TOKEN) -> Client:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60.0)
    return Client(streamable_http_client(address, http_client=http))


def test_every_tool_over_http_and_the_next_attempt(spent: Path, served: tuple[subprocess.Popen[str], str]) -> None:
    child, address = served

    async def talk() -> None:
        async with await over_http(address) as client:
            before = await text(client, "brief")
            assert "left: 39 evaluations, 199 probes" in before  # what was spent over stdio stays spent
            await use_every_tool_again(client)
            assert "is given up. Attempt" in await text(client, "give_up", reason="try another parent")
            after = await text(client, "brief")
            assert after.splitlines()[0] != before.splitlines()[0]

    asyncio.run(talk())
    refusals(address)
    strangers(address)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=20) == 130 and waits_for_nobody(spent)
    with PopulationReader(spent) as reader:
        assert fetch_one(reader.connection, "SELECT reason FROM failures ORDER BY attempt DESC") == "try another parent"
        assert reader.status().pending == 0


async def use_every_tool_again(client: Client) -> None:
    await text(client, "show_version", version=1, save_to="kernel.py")
    await use_every_tool(client)


def refusals(address: str) -> None:
    """A wrong token, none, and a page of somebody else's are refused."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    kinds = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        answer = httpx2.post(address, json=asked, headers=kinds | given)
        assert answer.status_code == 401 and "Authorization: Bearer TOKEN" in answer.text
    elsewhere = kinds | {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}
    assert httpx2.post(address, json=asked, headers=elsewhere).status_code == 403
    renamed = kinds | {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}
    assert httpx2.post(address, json=asked, headers=renamed).status_code == 421
    huge = httpx2.post(address, content=b"x" * (3 * 2**20), headers=kinds | {"Authorization": f"Bearer {TOKEN}"})
    assert huge.status_code == 413


def strangers(address: str) -> None:
    """Clients that hang, drip or vanish hold up nobody else."""
    host, port = re.match(r"http://([\d.]+):(\d+)", address).groups()  # type: ignore[union-attr]
    hanging = [socket.create_connection((host, int(port))) for _ in range(20)]
    for one in hanging[:10]:
        one.sendall(b"POST /mcp HTTP/1.1\r\nContent-Length: 1000\r\n")

    async def vanish() -> None:
        client = await over_http(address)
        with contextlib.suppress(BaseExceptionGroup):  # of the client, whose answer finds nobody
            async with client:
                asyncio.get_running_loop().create_task(client.call_tool("evaluate", {"idea": "gone before the answer"}))
                await asyncio.sleep(0.2)

    async def still_served() -> None:
        async with await over_http(address) as client:
            assert "kernel.py" in await asyncio.wait_for(text(client, "list_files"), 30)

    asyncio.run(vanish())
    asyncio.run(still_served())
    for one in hanging:
        one.close()


def test_a_server_in_the_middle_of_a_call_ends_cleanly(
    served: tuple[subprocess.Popen[str], str], population: Path
) -> None:
    child, address = served

    async def talk() -> None:
        async with await over_http(address) as client:
            await text(
                client,
                "edit_file",
                path="kernel.py",
                edits=[{"search": "import torch", "replace": "import torch  # touched"}],
            )
            call = asyncio.get_running_loop().create_task(client.call_tool("evaluate", {"idea": "cut off"}))
            await asyncio.sleep(0.5)
            child.send_signal(signal.SIGTERM)
            call.cancel()

    began = time.monotonic()
    with contextlib.suppress(Exception):  # the server is gone under the client: however it says so
        asyncio.run(talk())
    assert child.wait(timeout=30) == 130 and time.monotonic() - began < 40
    assert waits_for_nobody(population)
    with PopulationReader(population) as reader:
        assert reader.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(reader.tickets()) == 1 and reader.status().pending == 0


def test_a_token_is_made_and_kept_from_others(tmp_path: Path) -> None:
    from evo_kernel.app.mcp_server import token_for

    path = tmp_path / "p.db.mcp-token"
    token, where = token_for(path)
    assert path.read_text().strip() == token and len(token) > 30 and str(path) in where
    assert path.stat().st_mode & 0o077 == 0
    assert token_for(path)[0] != token


def test_a_token_goes_with_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evo_kernel.app.mcp_server import Ending, token_for

    class Left(Exception):
        pass

    def leave(code: int) -> None:
        raise Left

    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(os, "_exit", leave)
    path = tmp_path / "p.db.mcp-token"
    path.write_text("of a server that was killed")
    monkeypatch.setenv("EVO_KERNEL_MCP_TOKEN", TOKEN)
    assert token_for(path)[0] == TOKEN and not path.exists()
    monkeypatch.delenv("EVO_KERNEL_MCP_TOKEN")
    ending = Ending()
    ending.token = path
    assert token_for(path) and path.exists()
    with pytest.raises(Left):
        ending.now(130)
    assert not path.exists()


def waits_for_nobody(population: Path) -> bool:
    until = time.monotonic() + 15
    while owner(population) is not None and time.monotonic() < until:
        time.sleep(0.1)
    return owner(population) is None
