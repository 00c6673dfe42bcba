"""Passages of the knowledge base: sections of Markdown files, and what the installed Triton says of its API.

API passages hold a signature and Triton's own documentation, by exact version.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any

PASSAGE_CHARS = 2800  # a longer section is split between paragraphs

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """A piece of knowledge and where it can be looked up."""

    source: str  # "evo-kernel/wgmma.md#shapes", "triton-3.9.0/triton.language#dot", "FOLDER/FILE.md#heading"
    title: str  # the headings above it, outermost first: "wgmma › Which products become wgmma"
    text: str  # Markdown, without its heading


def tokens_of(text: str) -> int:
    """About how many tokens a language model sees, rather too many than too few: three bytes a token."""
    return -(-len(text.encode()) // 3)


def passages_of(text: str, file: str) -> Iterator[Passage]:
    """The passages of a Markdown file (plain text is one section). HTML comments are left out."""
    headings: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    for level, heading, body in _sections(_COMMENT.sub("", text.replace("\r\n", "\n"))):
        if level:
            headings = [(depth, name) for depth, name in headings if depth < level] + [(level, heading)]
        title = " › ".join(name for _, name in headings) or file.rsplit("/", 1)[-1]
        slug = re.sub(r"[^\w\- ]", "", headings[-1][1].lower()) if headings else ""
        anchor = slug.strip().replace(" ", "-")
        count = seen[anchor] = seen.get(anchor, -1) + 1
        place = f"{file}#{anchor}" + (f"-{count}" if count else "") if anchor else file
        for part in _parts(body.strip()):
            yield Passage(place, title, part)


def fit(text: str, budget_tokens: int) -> str:
    """As many whole paragraphs of a text as the budget holds, with a mark where something was left out."""
    if tokens_of(text) <= budget_tokens:
        return text
    kept: list[str] = []
    for paragraph in _paragraphs(text):
        if tokens_of("\n\n".join([*kept, paragraph, "[…]"])) > budget_tokens:
            break
        kept.append(paragraph)
    return "\n\n".join([*kept, "[…]"]) if kept else ""


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """(level, heading, body) of each section that has a body; level 0 is what comes before the first heading."""
    level, heading, body, fence = 0, "", [], ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark:
            fence = mark[1] if not fence else ("" if mark[1].startswith(fence) else fence)
        found = None if fence else _HEADING.match(line)
        if found is None:
            body.append(line)
            continue
        yield level, heading, "\n".join(body)
        level, heading, body = len(found[1]), found[2], []
    yield level, heading, "\n".join(body)


def _parts(body: str) -> Iterator[str]:
    """A body in parts of at most about PASSAGE_CHARS; paragraphs and code blocks stay whole where they can."""
    part = ""
    for paragraph in _paragraphs(body):
        for start in range(0, len(paragraph), PASSAGE_CHARS):
            piece = paragraph[start : start + PASSAGE_CHARS]
            if part and len(part) + len(piece) > PASSAGE_CHARS:
                yield part
                part = ""
            part = f"{part}\n\n{piece}" if part else piece
    if part:
        yield part


def _paragraphs(body: str) -> list[str]:
    """Split at empty lines, but not inside code blocks."""
    found: list[list[str]] = [[]]
    fence = ""
    for line in body.split("\n"):
        mark = _FENCE.match(line)
        if mark:
            fence = mark[1] if not fence else ("" if mark[1].startswith(fence) else fence)
        if line.strip() or fence:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return ["\n".join(lines) for lines in found if lines]


# Module → the name by which kernels know it. Later modules do not repeat what an earlier one has. sm_90 only.
MODULES = {
    "triton": "triton",
    "triton.language": "tl",
    "triton.language.math": "tl.math",
    "triton.language.extra.cuda": "tl.extra.cuda",
    "triton.tools.tensor_descriptor": "triton.tools.tensor_descriptor",
    "triton.testing": "triton.testing",
    "triton.experimental.gluon": "gluon",
    "triton.experimental.gluon.language": "gl",
    "triton.experimental.gluon.language.nvidia.ampere": "ampere",
    "triton.experimental.gluon.language.nvidia.ampere.async_copy": "async_copy",
    "triton.experimental.gluon.language.nvidia.hopper": "hopper",
    "triton.experimental.gluon.language.nvidia.hopper.tma": "hopper.tma",
    "triton.experimental.gluon.language.nvidia.hopper.mbarrier": "hopper.mbarrier",
    "triton.experimental.gluon.language.nvidia.hopper.cluster": "hopper.cluster",
    "triton.experimental.gluon.nvidia.hopper": "gluon.nvidia.hopper",
}
LIBDEVICE = "triton.language.extra.libdevice"  # two hundred functions without a word: one passage
DOC_TOKENS = 700
NAMES_CHARS = 2400

_HIDDEN = re.compile(r",? ?_(?:semantic|builder|generator|func|ip|loc)(?::[^,)]*)?(?:=[^,)]*)?(?=[,)])")
_FOREIGN = re.compile(
    r"^(?:torch|numpy|typing|builtins|functools|dataclasses|enum|os|sys|contextlib|abc|collections)\b"
)
# Marks of reStructuredText that say nothing to a reader of plain text.
_MARKUP = re.compile(r":(?:code|py:func|func|class|attr|math|obj):`([^`]*)`")


@dataclass(frozen=True)
class ApiEntry:
    """A function or class as kernels name it, described."""

    names: tuple[str, ...]  # by which it is surely meant: "tl.make_tensor_descriptor", "make_tensor_descriptor"
    passage: Passage
    listing: bool = False  # many names at once


def api_passages() -> Iterator[ApiEntry]:
    """Every public name of the modules above that this Triton has, and one list of names a module.

    Raises ImportError when Triton cannot be imported; modules that this version lacks are left out.
    """
    importlib.import_module("triton.language")
    release = f"triton-{version('triton')}"
    known: set[int] = set()
    for path, short in MODULES.items():
        try:
            module = importlib.import_module(path)
        except ImportError:
            continue
        found = [(name, thing) for name, thing in _public(module) if id(thing) not in known]
        known.update(id(thing) for _, thing in found)
        for name, thing in found:
            yield _entry(release, path, short, name, thing)
        if len(names := [name for name, _ in found]) > 3:  # one look tells what this version has and what it lacks
            text = f"All of `{path}` ({short}) in {release.replace('-', ' ')}: {', '.join(names)}."
            listing = Passage(f"{release}/{path}", f"{short}: all names", text[:NAMES_CHARS])
            yield ApiEntry((path,), listing, listing=True)
    try:
        module = importlib.import_module(LIBDEVICE)
    except ImportError:
        return
    calls = [f"{name}{_signature(thing)}" for name, thing in _public(module)]
    imported = f"from {LIBDEVICE.rpartition('.')[0]} import libdevice"
    text = f"`{imported}`, in {release.replace('-', ' ')}: {', '.join(calls)}."
    yield ApiEntry(("libdevice",), Passage(f"{release}/{LIBDEVICE}", "libdevice: all functions", text), listing=True)


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions and classes that a module offers: by `__all__` where it has one, else all that Triton defines."""
    for name in sorted(getattr(module, "__all__", ()) or dir(module)):
        thing = getattr(module, name, None)
        if name.startswith("_") or thing is None or inspect.ismodule(thing) or not callable(thing):
            continue
        if not _FOREIGN.match(getattr(_function(thing), "__module__", None) or "builtins"):
            yield name, thing


def _entry(release: str, path: str, short: str, name: str, thing: Any) -> ApiEntry:
    title = f"{short}.{name}"
    lines = [f"`{title}{_signature(thing)}`", "", f"In {release.replace('-', ' ')}, module `{path}`."]
    doc = _documentation(thing)
    # A name of one plain word (load, sum) is also a word of any question; `do_bench` and `TensorDescriptor` are not.
    names = (title, name) if "_" in name.strip("_") or not name[1:].islower() else (title,)
    return ApiEntry(names, Passage(f"{release}/{path}#{name}", title, "\n".join(lines + (["", doc] if doc else []))))


def _function(thing: Any) -> Callable[..., Any]:
    """What a decorator wrapped: `triton.jit` functions keep theirs in `fn`."""
    return inspect.unwrap(getattr(thing, "fn", thing))


def _signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(_function(thing)))
    except (ValueError, TypeError):
        return "(...)"
    return _HIDDEN.sub("", text).replace("(, ", "(").replace("'", "")


def _documentation(thing: Any) -> str:
    """What Triton says about a function or class: up to DOC_TOKENS, without its code examples."""
    text = inspect.getdoc(_function(thing)) or ""
    if isinstance(thing, type) and text == inspect.getdoc(object):
        return ""
    kept, example = [], False
    for line in _MARKUP.sub(r"`\1`", text).split("\n"):
        if line.startswith((".. highlight", ".. code", ".. testcode")):
            example = True
        elif line and not line.startswith(" "):
            example = False
        if not example:
            kept.append(line)
    return fit("\n".join(kept).strip(), DOC_TOKENS)
