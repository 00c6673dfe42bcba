# ruff: noqa: T201 - printing is what it is for
"""The commands of a workspace: one request to whoever started the agent, one answer, printed.

Runs as a copy in the workspace, in an agent's process: standard library only, imports nothing of the project.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import NoReturn

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = {
    "probe": "./probe kernel.py",
    "evaluate": './evaluate kernel.py --idea "one pass over the row"',
    "profile": "./profile kernel.py --case NAME",
    "submit": './submit kernel.py --strategy one-pass-row --idea "one pass over the row"',
    "lineage": "./lineage --order path",
    "show": "./show 3 --to old.py",
    "knowledge": "./knowledge shared memory bank conflicts",
    "notes": "./notes softmax",
    "note": './note "rows of 1000 gain from 8 warps" --evidence E4.1:0',
    "tool": './tool diff_versions \'{"older": 1, "newer": 3}\'',
}


def main() -> int:
    name = os.path.basename(sys.argv[1])
    tool, arguments = request_of(name, parsed(name, sys.argv[2:]))
    try:
        answer = ask({"tool": tool, "arguments": arguments})
    except HungUp:
        print("the command was cut short without an answer: the machine failed, or the attempt ends. Try another one")
        return 1
    except OSError as error:
        print(f"the attempt is over, or nobody answers ({error}): there is nothing more to do here", file=sys.stderr)
        return 3
    print(answer["text"])
    return 1 if answer.get("failed") or (tool == "submit" and not answer.get("committed")) else 0


class HungUp(Exception):
    """Somebody took the request and gave no whole answer."""


class Parser(argparse.ArgumentParser):
    """Says how it is done right, where it was done wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"./{os.path.basename(sys.argv[1])}: {message}\n{self.epilog}\n")


def parsed(name: str, words: list[str]) -> argparse.Namespace:
    parser = Parser(prog=f"./{name}", epilog=f"example: {EXAMPLES[name]}")
    if name in ("probe", "evaluate", "profile", "submit"):
        parser.add_argument("file", nargs="?", default=os.path.join(HERE, "kernel.py"), help="kernel.py if left out")
    if name in ("evaluate", "submit"):
        parser.add_argument("--idea", required=name == "submit", default="not said", help="what it tries, in few words")
    if name == "profile":
        parser.add_argument("--case", help="one case; all if left out")
    if name == "submit":
        parser.add_argument("--strategy", required=True, help="a short name such as split-k")
        parser.add_argument("--family", help="tiling, fusion, pipeline, reordering, memory, launch or algorithm")
        parser.add_argument("--merged-from", type=int, nargs="*", help="versions whose ideas are in it too")
    if name == "lineage":
        parser.add_argument("--order", choices=["best", "newest", "path"], default="best")
        parser.add_argument("--limit", type=int, default=20)
    if name == "show":
        parser.add_argument("version", type=number, metavar="N", help="3 for C3")
        parser.add_argument("--to", help="a file of the workspace to write the source to")
    if name in ("knowledge", "notes"):
        parser.add_argument("words", nargs="+" if name == "knowledge" else "*")
    if name == "note":
        parser.add_argument("text")
        parser.add_argument("--evidence", nargs="+", type=cited, required=True, metavar="EVALUATION:SAMPLES")
    if name == "tool":
        parser.add_argument("name")
        parser.add_argument("arguments", nargs="?", default="{}", help="one JSON object")
    return parser.parse_args(words)


def number(text: str) -> int:
    digits = text.removeprefix("C")
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no version: write 3 or C3, as ./lineage names them")
    return int(digits)


def cited(text: str) -> dict[str, object]:
    name, _, samples = text.rpartition(":") if ":" in text else (text, "", "0")
    if not name or not samples.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no evidence: write E4.1:0, the name and its samples a case")
    return {"evaluation": name, "samples": int(samples)}


def request_of(name: str, given: argparse.Namespace) -> tuple[str, object]:
    """(tool, arguments) as the workbench knows them."""
    if name == "tool":
        return given.name, given.arguments
    if name in ("probe", "evaluate", "profile", "submit"):
        arguments = {key.replace("-", "_"): value for key, value in vars(given).items() if value is not None}
        return name, {**{k: v for k, v in arguments.items() if k != "file"}, "path": inside(given.file)}
    if name == "lineage":
        return "lineage", {"order": given.order, "limit": given.limit}
    if name == "show":
        saved = {"save_to": inside(given.to)} if given.to else {}
        return "show_version", {"version": given.version, **saved}
    if name == "knowledge":
        return "knowledge", {"query": " ".join(given.words)}
    if name == "notes":
        return "notes", {"query": " ".join(given.words)} if given.words else {}
    return "note", {"text": given.text, "evidence": given.evidence}


def inside(path: str) -> str:
    """Relative to the workspace."""
    found = os.path.relpath(os.path.abspath(path), HERE)
    if found.startswith(".."):
        sys.exit(f"{path} is not in the workspace: copy it to {HERE} first")
    return found


def ask(request: dict[str, object]) -> dict[str, object]:
    line = json.dumps(request).encode() + b"\n"
    if len(line) > 256 * 1024:
        sys.exit("the request is too long: name files instead of sending their text")
    folder = os.getcwd()
    with socket.socket(socket.AF_UNIX) as connection:
        os.chdir(os.path.dirname(os.path.abspath(__file__)))  # a socket's path may be 107 bytes long, no more
        connection.connect("desk")
        os.chdir(folder)
        connection.sendall(line)
        with connection.makefile("rb") as file:
            answer = file.readline()
    if not answer.endswith(b"\n"):
        raise HungUp
    return json.loads(answer)


if __name__ == "__main__":
    sys.exit(main())
