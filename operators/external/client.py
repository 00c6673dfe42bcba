# ruff: noqa: T201 - printing is what it is for
"""The commands of a workspace, one a tool: a request to whoever started the agent, its answer, printed.

Runs as a copy in the workspace, in an agent's process: standard library only, imports nothing of the project. Beside it
lies `tools.json`: the tools with their descriptions and parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import Any

OWN = os.path.dirname(os.path.abspath(__file__))
HERE = os.path.dirname(OWN)
ABOUT = ("older", "version", "note", "query", "text", "path")
"""Parameters that are written without their name: the first of them that a tool has."""


def main() -> int:
    name = os.path.basename(sys.argv[1])
    with open(os.path.join(OWN, "tools.json"), encoding="utf-8") as file:
        arguments = parsed(name, json.load(file)[name], sys.argv[2:])
    try:
        answer = ask({"tool": name, "arguments": arguments})
    except HungUp:
        print("the command was cut short without an answer: the machine failed, or the attempt ends. Try another one")
        return 1
    except OSError as error:
        print(f"the attempt is over, or nobody answers ({error}): there is nothing more to do here", file=sys.stderr)
        return 3
    print(answer["text"])
    return 1 if answer.get("failed") or (name == "submit" and not answer.get("committed")) else 0


class HungUp(Exception):
    """Somebody took the request and gave no whole answer."""


def parsed(name: str, tool: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The arguments of a tool, as its parameters have them."""
    parser = argparse.ArgumentParser(prog=f"./{name}", description=tool["description"])
    properties, needed = tool["parameters"]["properties"], tool["parameters"]["required"]
    about = next((key for key in ABOUT if key in properties), None)
    for key, one in properties.items():
        how: dict[str, Any] = {"help": one.get("description", "").replace("%", "%%"), "type": type_of(key, one)}
        if "enum" in one:
            how["choices"] = one["enum"]
        if one["type"] == "array":
            how["nargs"] = "+"
        if key != about:
            parser.add_argument(f"--{key.replace('_', '-')}", dest=key, required=key in needed, **how)
        elif key == "query":  # words need no quotes
            parser.add_argument(key, nargs="+" if key in needed else "*", **how)
        else:
            parser.add_argument(key, nargs=None if key in needed else "?", **how)
    given = vars(parser.parse_args(words))
    if isinstance(given.get("query"), list):
        given["query"] = " ".join(given["query"]) or None
    return {key: value for key, value in given.items() if value is not None}


def type_of(key: str, parameter: dict[str, Any]) -> Any:
    """What reads a word of the command line."""
    if key in ("path", "save_to"):
        return inside
    kind = parameter["items"]["type"] if parameter["type"] == "array" else parameter["type"]
    return {"integer": number, "object": cited}.get(kind, str)


def number(text: str) -> int:
    digits = text.removeprefix("C")
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number: write 3, or C3 as ./lineage names versions")
    return int(digits)


def cited(text: str) -> dict[str, object]:
    name, _, samples = text.rpartition(":") if ":" in text else (text, "", "0")
    if not name or not samples.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no evidence: write E4.1:0, the name and its samples a case")
    return {"evaluation": name, "samples": int(samples)}


def inside(path: str) -> str:
    found = os.path.relpath(os.path.abspath(path), HERE)
    if found.startswith(".."):
        raise argparse.ArgumentTypeError(f"{path} is not in the workspace: copy it to {HERE} first")
    return found


def ask(request: dict[str, object]) -> dict[str, object]:
    line = json.dumps(request).encode() + b"\n"
    if len(line) > 256 * 1024:
        sys.exit("the request is too long: name files instead of sending their text")
    with socket.socket(socket.AF_UNIX) as connection:
        os.chdir(OWN)  # a socket's path may be 107 bytes long, no more
        connection.connect("desk")
        connection.sendall(line)
        with connection.makefile("rb") as file:
            answer = file.readline()
    if not answer.endswith(b"\n"):
        raise HungUp
    return json.loads(answer)


if __name__ == "__main__":
    sys.exit(main())
