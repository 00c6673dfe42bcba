"""The documentation: pages and anchors that are linked exist, and so do the commands, options and settings it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath

import click
import pytest

from docs.generated_pages import PAGES
from evo_kernel.cli.main import cli
from evo_kernel.config import keys

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"docs/([\w./-]+\.(?:md|svg|png))(#[\w-]+)?")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
WRITTEN = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
NAMES = sorted({*WRITTEN, *PAGES})


@cache
def pages() -> dict[str, str]:
    """Path below docs/ → text, of written and generated pages."""
    assert not WRITTEN.keys() & PAGES.keys(), "generated pages are not stored"
    return {name: path.read_text() for name, path in WRITTEN.items()} | {path: write() for path, write in PAGES.items()}


def anchors(text: str) -> set[str]:
    """As MkDocs makes them of headings."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(plain))
    words = (re.sub(r"[^\w\s-]", "", title, flags=re.ASCII).strip().lower() for title in titles)
    return {re.sub(r"[-\s]+", "-", word) for word in words}


def exists(path: str, anchor: str) -> bool:
    if not path.endswith(".md"):
        return (ROOT / "docs" / path).is_file()
    text = pages().get(path)
    return text is not None and (not anchor or anchor.lstrip("#") in anchors(text))


def joined(base: str, target: str) -> str:
    """`target` as seen from the folder `base`, without its dots."""
    parts: list[str] = []
    for part in (PurePosixPath(base) / target).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


@pytest.mark.parametrize("page", NAMES)
def test_links_between_pages_hit(page: str) -> None:
    for link in LINK.findall(CODE.sub("", pages()[page])):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = joined(str(PurePosixPath(page).parent), path) if path else page
        assert exists(target, anchor), f"docs/{page} links to {link}"


def test_pages_that_code_and_readme_name_exist() -> None:
    folders = ("evo_kernel", "operators", "populations", "benchmarks", "configs", "tests", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".toml")
    ]
    found = 0
    for file in (*files, ROOT / "README.md", ROOT / "Makefile"):
        for path, anchor in NAMED.findall(file.read_text()) if file != Path(__file__) else ():
            found += 1
            assert exists(path, anchor), f"{file.relative_to(ROOT)} names docs/{path}{anchor}"
    assert found > 50


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pages())


def commands() -> Iterator[tuple[str, list[str]]]:
    """Command lines of evo-kernel in fenced blocks, with where they stand."""
    for name, text in {**pages(), "README.md": (ROOT / "README.md").read_text()}.items():
        for block in FENCE.findall(text.replace("\\\n", " ")) if name not in PAGES else ():
            for line in block.splitlines():
                if said := re.match(r"(?:\$ )?(?:\S+=\S+ )*(?:\.venv/bin/)?evo-kernel (.+)", line):
                    yield f"{name}: {line}", shlex.split(re.split(r"\s#|\s>", said[1])[0])


def test_documented_commands_and_settings_exist() -> None:
    seen = set()
    known = {re.sub(r"models\.NAME", "models.main", name) for name, _, _ in keys()}
    for where, words in commands():
        command: click.Command | None = cli
        for word in words:
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word)
        assert command is not None, where
        seen.add(command.name)
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= options, where
        settings = [after for word, after in pairwise(words) if word == "--set"]
        assert {setting.split("=")[0].strip() for setting in settings} <= known, where
    assert len(seen) >= 20


@pytest.mark.parametrize("page", NAMES)
def test_lists_and_tables_begin_after_an_empty_line(page: str) -> None:
    """Else Markdown takes them for the end of a paragraph."""
    lines = re.sub(r"^```.*?^```", "", pages()[page], flags=re.MULTILINE | re.DOTALL).splitlines()
    starts = re.compile(r"\* |\d+\. |\|")
    inside = re.compile(r"\* |\d+\. |\|| |#|$")
    for before, line in pairwise(lines):
        assert not starts.match(line) or inside.match(before), f"docs/{page}: an empty line is missing before {line!r}"
