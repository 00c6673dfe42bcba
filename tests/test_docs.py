"""Links of the documentation: every page and anchor that docs, README, help texts and comments name exists."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest

from evo_kernel.cli.reference_docs import PAGES

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"docs/([\w./-]+\.(?:md|svg|png))(#[\w-]+)?")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def pages() -> dict[str, str]:
    """Path below docs/ → text, of written and generated pages."""
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix(): path.read_text() for path in docs.rglob("*.md")}
    assert not written.keys() & PAGES.keys(), "generated pages are not stored"
    return written | {path: write() for path, write in PAGES.items()}


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


@pytest.mark.parametrize("page", sorted(pages()))
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


@pytest.mark.parametrize("page", sorted(pages()))
def test_lists_and_tables_begin_after_an_empty_line(page: str) -> None:
    """Else Markdown takes them for the end of a paragraph."""
    lines = re.sub(r"^```.*?^```", "", pages()[page], flags=re.MULTILINE | re.DOTALL).splitlines()
    starts = re.compile(r"\* |\d+\. |\|")
    inside = re.compile(r"\* |\d+\. |\|| |#|$")
    for before, line in pairwise(lines):
        assert not starts.match(line) or inside.match(before), f"docs/{page}: an empty line is missing before {line!r}"
