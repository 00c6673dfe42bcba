"""The knowledge base: full-text search over notes, with sources.

What is in it: the notes that ship with the project, the docstrings of its champions, what the installed Triton offers
(`api.py`), and Markdown or text files in folders that the user names. Ranking is SQLite FTS5's bm25 (Robertson and
Zaragoza, "The Probabilistic Relevance Framework", 2009) over words and identifiers. The index lives in memory: building
it takes half a second.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from evo_kernel.champions import champions
from evo_kernel.errors import UserError
from operators.knowledge.passages import Passage, fit, passages_of, tokens_of

NOTES = Path(__file__).with_name("notes")
SUFFIXES = (".md", ".markdown", ".txt", ".rst")
MAX_FILE_BYTES = 2_000_000  # a larger file is a log or data, not a note
MAX_FOLDER_BYTES = 64_000_000
QUERY_WORDS = 48  # the first so many different ones count

HEADING_WEIGHT, ABOVE_WEIGHT = 4.0, 1.5  # a word in a section's heading, in those above it; in its text 1.0
CHAMPION_WEIGHT = 0.7  # a note is about many kernels
API_WEIGHT = 0.5  # a note explains, an API passage only states ...
LISTING_WEIGHT = 0.25  # ... and a list of names says even less ...
NAMED_WEIGHT = 2.0  # ... but it comes first where its own name is asked for

_WORD = re.compile(r"[^\W_][\w]*(?:\.\w+)*", re.UNICODE)
_UNDERLINED = re.compile(r"^(.+)\n-{3,}$", re.MULTILINE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Words that say nothing about what is asked for, and those that every passage here is about.
_COMMON = """
a about all am an and any are as at be been but by can could did do does for from get had has have how i if in into is
it its me more much my no not of on one or our should so some such than that the their them then there these they this
those to too use used using want was we were what when where which while who why will with would you your
make need best good way kernel kernels triton
"""
_STOP = frozenset(_COMMON.split())


class KnowledgeBase:
    """Searchable notes. Thread-safe. The index is built when it is first asked for something.

    `folders`: of the user, searched beside the shipped notes. `api`: whether the installed Triton is described too.
    Raises UserError, at once, when a folder does not exist.
    """

    def __init__(self, folders: Sequence[Path] = (), *, api: bool = True) -> None:
        self._folders = tuple(Path(folder).expanduser() for folder in folders)
        for folder in self._folders:
            if not folder.exists():
                why = f"there is no knowledge folder {folder}. Mend knowledge.folders (or --folder), or make it."
                raise UserError(why)
        self._folders = tuple(folder.resolve() for folder in self._folders)
        self._api = api
        self._lock = threading.Lock()
        self._index: sqlite3.Connection | None = None
        self._passages: list[Passage] = []
        self._skipped: list[str] = []

    def search(self, query: str, k: int = 4, budget_tokens: int = 2000) -> tuple[Passage, ...]:
        """The best passages for a query in words, best first: at most `k`, together within `budget_tokens`.

        Any text is a query; identifiers (`tl.dot`, `num_stages`) are found as a whole and by their parts. What does not
        fit into the budget is cut between paragraphs, or left out. Empty when nothing matches.
        """
        asked = list(dict.fromkeys(tokens(query)))
        words = ([word for word in asked if word not in _STOP] or asked)[:QUERY_WORDS]
        if not words or k < 1:
            return ()
        match = " OR ".join(f'"{word}"' for word in words)  # words hold letters, digits, `_` and `.` only
        with self._lock:
            rows = self._built().execute(_SEARCH, (match, json.dumps(words), k)).fetchall()
        return tuple(_within([self._passages[row - 1] for (row,) in rows], budget_tokens))

    def titles(self) -> tuple[tuple[str, str], ...]:
        """(source, title) of all passages in the order of their files."""
        with self._lock:
            self._built()
        return tuple(dict.fromkeys((passage.source, passage.title) for passage in self._passages))

    @property
    def skipped(self) -> tuple[str, ...]:
        """What could not be read, in sentences."""
        with self._lock:
            self._built()
        return tuple(self._skipped)

    def _built(self) -> sqlite3.Connection:
        """The index; the caller holds the lock."""
        if self._index is None:
            self._passages, self._skipped = [], []
            index = sqlite3.connect(":memory:", check_same_thread=False)
            try:
                index.executescript(_SCHEMA)
            except sqlite3.OperationalError as error:
                raise UserError(
                    f"the knowledge base needs SQLite with FTS5; this Python's {sqlite3.sqlite_version} says: {error}. "
                    "Use a Python build that has it (python.org, conda, uv and the distributions' do)."
                ) from error
            for passage, weight, names in self._gather():
                self._passages.append(passage)
                above, _, heading = passage.title.rpartition(" › ")
                stem = passage.source.split("#", maxsplit=1)[0].rsplit("/", 1)[-1].rsplit(".", 1)[0]  # the file's name
                parts = (heading, f"{above} {stem}", passage.text)
                row = (len(self._passages), *(" ".join(tokens(part)) for part in parts))
                index.execute("INSERT INTO passages(rowid, heading, above, text) VALUES (?, ?, ?, ?)", row)
                index.execute("INSERT INTO ranks VALUES (?, ?)", (row[0], weight))
                index.executemany("INSERT INTO names VALUES (?, ?)", {(name.lower(), row[0]) for name in names})
            index.execute("INSERT INTO passages(passages) VALUES ('optimize')")
            self._index = index
        return self._index

    def _gather(self) -> Iterator[tuple[Passage, float, tuple[str, ...]]]:
        """(passage, weight, the API names or tasks that it describes) of everything."""
        for passage in self._read(NOTES, "evo-kernel"):
            # A note's lead says where its facts come from: seldom the answer.
            yield passage, 1.0 if " › " in passage.title else LISTING_WEIGHT, ()
        for file, text in {one.file: one.docstring for one in champions()}.items():
            titled = _UNDERLINED.sub(r"## \1", f"# Champion: {text}")
            for passage in passages_of(titled, f"evo-kernel/champions/{file.parent.name}/{file.name}"):
                told = passage.title.endswith(("Mechanism", "Dead ends"))
                names = tuple(one.name for one in champions() if one.file == file) if told else ()
                yield passage, CHAMPION_WEIGHT if told else LISTING_WEIGHT, names
        labels = ["evo-kernel", *(folder.name for folder in self._folders)]
        for folder in self._folders:  # its sources start with its name, or with its path where names repeat
            label = folder.as_posix() if labels.count(folder.name) > 1 else folder.name
            yield from ((passage, 1.0, ()) for passage in self._read(folder, label))
        if not self._api:
            return
        from operators.knowledge.passages import api_passages  # here, because it imports triton: 0.3 s

        try:
            for entry in api_passages():
                yield entry.passage, LISTING_WEIGHT if entry.listing else API_WEIGHT, entry.names
        except ImportError as error:
            self._skipped.append(f"the installed Triton is not described: it does not import ({error})")

    def _read(self, folder: Path, label: str) -> Iterator[Passage]:
        total = 0
        for path in _files(folder):
            name = f"{label}/{path.relative_to(folder).as_posix()}" if path != folder else label
            try:
                size = path.stat().st_size
                text = path.read_text(encoding="utf-8") if size <= MAX_FILE_BYTES else None
            except (OSError, UnicodeDecodeError) as error:
                self._skipped.append(f"{path} was left out: {error}")
                continue
            if text is None:
                self._skipped.append(f"{path} was left out: larger than {MAX_FILE_BYTES // 1_000_000} MB")
                continue
            total += size
            if total > MAX_FOLDER_BYTES:
                raise UserError(
                    f"the knowledge folder {folder} holds more than {MAX_FOLDER_BYTES // 1_000_000} MB of notes. "
                    "Name a smaller folder (knowledge.folders, --folder)."
                )
            yield from passages_of(text, name)


# Indexed are the words that `tokens` found; porter takes endings off (coalesced, coalescing). The texts themselves stay
# in Python: the index holds no copy. What is asked for by its very name comes first.
_SCHEMA = """
CREATE VIRTUAL TABLE passages USING fts5(heading, above, text, content='', tokenize="porter unicode61 tokenchars '._'");
CREATE TABLE ranks(passage INTEGER PRIMARY KEY, weight REAL NOT NULL);
CREATE TABLE names(name TEXT, passage INTEGER, PRIMARY KEY (name, passage)) WITHOUT ROWID;
"""
_SEARCH = f"""
WITH named AS (SELECT passage FROM names WHERE name IN (SELECT value FROM json_each(?2)))
SELECT passage FROM passages JOIN ranks ON passage = passages.rowid WHERE passages MATCH ?1
ORDER BY bm25(passages, {HEADING_WEIGHT}, {ABOVE_WEIGHT}, 1.0) * iif(passage IN named, {NAMED_WEIGHT}, weight), passage
LIMIT ?3"""


def tokens(text: str) -> Iterator[str]:
    """Words in lower case; an identifier as a whole, then its parts: `tl.dot_scaled` also as tl, dot, scaled."""
    for found in _WORD.finditer(text):
        word = found[0].rstrip("._")
        yield word.lower()
        parts = [hump for piece in re.split(r"[._]+", word) for hump in _HUMP.split(piece) if hump]
        if len(parts) > 1:
            yield from (part.lower() for part in parts)


def _within(found: Iterable[Passage], budget_tokens: int) -> Iterator[Passage]:
    left = budget_tokens
    for passage in found:
        head = tokens_of(passage.source + passage.title)
        text = fit(passage.text, left - head)
        if text:
            left -= head + tokens_of(text)
            yield Passage(passage.source, passage.title, text)


def _files(folder: Path) -> Iterator[Path]:
    """Notes below a folder (or the file itself) in a fixed order; hidden folders and links to folders are left out."""
    if folder.is_file():
        yield folder
        return
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if name.lower().endswith(SUFFIXES))
