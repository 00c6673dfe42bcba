"""From a completion to a kernel: a whole file, search/replace blocks (docs/guides/agents.md) or numbered lines.

Reading is strict and never raises: a completion that holds no edit is worth a reward like any other, a low one.

The source is shown with `@N` and a line break before each line, counted from 1. An edit is a list of hunks, each a
header and the new lines, which carry no numbers:

    @12         line 12 becomes what follows
    @12@14      lines 12 to 14 become what follows
    @20         line 20 goes (nothing follows)
    @3+         what follows stands after line 3 (@0+: before the first)
    @3+@9       the same; that it is like line 9 is said for the writer's sake alone

Numbers are those of the source as it was shown; hunks stand in order and do not overlap. `written` puts each new line
below the number of the line that it is like, so that a model finds what to copy by a number that it has just said.
Blank lines at the end of an edit are lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from evo_kernel.syntax import parse_module
from operators.micro.edit_blocks import DIVIDE, REPLACE, SEARCH, MalformedAnswer, apply, feedback, parse

HEADER = re.compile(r"@(\d{1,4})(?:@(\d{1,4})|(\+)(?:@\d{1,4})?)?")
_WORD = re.compile(r"\w+|[^\w\s]")
MOST_HUNKS = 1000
HEIR = 0.3  # share of words in common from which on a line that changed comes of another
ALIKE = 0.5  # the same of a line that was put in


class BadLines(ValueError):
    """An edit that does not fit its source; the message says why."""


@dataclass(frozen=True)
class Hunk:
    """Lines `first` to `last` (from 1, both included) become `lines`; an insertion has last = first - 1."""

    first: int
    last: int
    lines: tuple[str, ...]


def numbered(text: str) -> str:
    """The source as a model is shown it."""
    return "".join(f"@{number}\n{line}" for number, line in enumerate(text.rstrip("\n").split("\n"), start=1))


def written(parent: str, child: str) -> str:
    """The edit that makes `child` of `parent`; empty where they are the same. A hunk for each line that changes."""
    old, new = parent.rstrip("\n").split("\n"), child.rstrip("\n").split("\n")
    models = [_words(line) for line in old]
    said: list[str] = []
    for kind, low, high, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        heirs = _heirs(models[low:high], [_words(line) for line in new[start:stop]])
        at = low  # lines of the parent that were spoken of
        for line, forebear in zip(new[start:stop], heirs, strict=True):
            if forebear is None:
                said += [*_insertion(models, at, line, said), line]
                continue
            said += [f"@{gone + 1}" for gone in range(at, low + forebear)]
            at = low + forebear + 1
            said += [f"@{at}", line]
        said += [f"@{gone + 1}" for gone in range(at, high)]
    return "\n".join(said)


def _insertion(models: Sequence[Counter[str]], after: int, line: str, said: Sequence[str]) -> list[str]:
    """The header of a line that is put in; none where it goes on with what the hunk before put in. `models`: words of
    the source's lines, which it may be like."""
    words = _words(line)
    best = max(range(len(models)), key=lambda at: _alike(models[at], words), default=0)
    if models and words.total() > 2 and _alike(models[best], words) > ALIKE:
        return [f"@{after}+@{best + 1}"]
    if said and not HEADER.fullmatch(said[-1]):
        last = next(found for one in reversed(said) if (found := HEADER.fullmatch(one)))
        if int(last[1]) == after:
            return []
    return [f"@{after}+"]


def _words(line: str) -> Counter[str]:
    return Counter(_WORD.findall(line))


def _alike(one: Counter[str], two: Counter[str]) -> float:
    return 2 * (one & two).total() / max(1, one.total() + two.total())


def _heirs(old: Sequence[Counter[str]], new: Sequence[Counter[str]]) -> list[int | None]:
    """For each new line the old one that it comes of: the pairing in order with the most words in common."""
    alike = np.zeros((len(old) + 1, len(new) + 1))
    pairs = np.zeros((len(old), len(new)))
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            pairs[i, j] = score if (score := _alike(old[i], new[j])) > HEIR else -1.0
            alike[i, j] = max(alike[i + 1, j], alike[i, j + 1], alike[i + 1, j + 1] + pairs[i, j])
    found: list[int | None] = [None] * len(new)
    i = j = 0
    while i < len(old) and j < len(new):
        if alike[i, j] == alike[i + 1, j + 1] + pairs[i, j]:
            found[j] = i
            i, j = i + 1, j + 1
        elif alike[i, j] == alike[i + 1, j]:
            i += 1
        else:
            j += 1
    return found


def parsed(text: str) -> tuple[Hunk, ...]:
    """Raises BadLines."""
    hunks: list[Hunk] = []
    lines: list[str] = []
    for line in text.strip("\n").split("\n"):
        found = HEADER.fullmatch(line.rstrip())
        if found is None:
            if not hunks:
                raise BadLines(f"an edit starts with a header such as `@12`, `@12@14` or `@3+`, not {line[:40]!r}")
            lines.append(line)
            continue
        if hunks:
            hunks[-1] = Hunk(hunks[-1].first, hunks[-1].last, tuple(lines))
        first = int(found[1]) + (found[3] is not None)
        last = first - 1 if found[3] else int(found[2] or found[1])
        if found[3] is None and last < first:
            raise BadLines(f"lines {first} to {last} are no range")
        hunks.append(Hunk(first, last, ()))
        lines = []
        if len(hunks) > MOST_HUNKS:
            raise BadLines(f"an edit has at most {MOST_HUNKS} hunks")
    hunks[-1] = Hunk(hunks[-1].first, hunks[-1].last, tuple(lines))
    return tuple(hunks)


def applied(text: str, parent: str) -> str:
    """The child that an edit makes of `parent`. Raises BadLines."""
    old = parent.rstrip("\n").split("\n")
    new: list[str] = []
    at = 0  # lines of the parent that are behind us
    for hunk in parsed(text):
        if hunk.first - 1 < at or max(hunk.last, hunk.first - 1) > len(old) or hunk.first < 1:
            raise BadLines(
                f"lines {hunk.first} to {hunk.last} are out of order, or not in a source of {len(old)} lines"
            )
        new += [*old[at : hunk.first - 1], *hunk.lines]
        at = hunk.last
    return "\n".join([*new, *old[at:]]) + "\n"


MOST_CHARACTERS = 200_000
"""Of a completion: what is longer was written by a loop."""

WHOLE_ABOVE = 0.6
"""Where more than this share of the parent's lines changes, a whole file is shorter to write than blocks."""


@dataclass(frozen=True)
class Written:
    """The kernel that a completion stands for; `text` is None where it stands for none, and `fault` says why."""

    text: str | None
    fault: str = ""


def kernel_of(completion: str, parent: str) -> Written:
    """Read one completion that answers for `parent`. Never raises."""
    if len(completion) > MOST_CHARACTERS:
        return Written(None, f"the completion has {len(completion)} characters; at most {MOST_CHARACTERS} are read")
    try:
        if HEADER.fullmatch(completion.strip("\n").split("\n", 1)[0].rstrip()):
            text = applied(completion, parent)
        else:
            edited = apply(parse(completion), parent)
            if edited.misfits:
                raise MalformedAnswer(feedback(edited))
            text = edited.text
        parse_module(text)
    except (BadLines, MalformedAnswer) as error:
        return Written(None, str(error))
    except (SyntaxError, ValueError, RecursionError) as error:
        return Written(None, f"what it makes of the source is no Python: {error}")
    if text.strip() == parent.strip():
        return Written(None, "it leaves the source as it was")
    return Written(text)


def reasoning_of(reply: str) -> str:
    """What an agent wrote around its edit: the lines outside of blocks and fences."""
    kept: list[str] = []
    inside = ""
    for line in reply.split("\n"):
        mark = line.strip()
        if inside:
            if (inside == "fence" and mark.startswith("```")) or (inside == "block" and mark == REPLACE):
                inside = ""
        elif mark == SEARCH:
            inside = "block"
        elif mark.startswith("```"):
            inside = "fence"
        else:
            kept.append(line)
    return "\n".join(kept).strip()


def answer_text(parent: str, child: str, reasoning: str = "") -> str:
    """The answer that makes `child` of `parent`, in the form that `kernel_of` and the coder of a run read."""
    blocks = _blocks(parent, child)
    edit = blocks if blocks is not None else f"```python\n{child.rstrip()}\n```"
    return f"{reasoning.strip()}\n\n{edit}" if reasoning.strip() else edit


def _blocks(parent: str, child: str) -> str | None:
    """Search/replace blocks; None where a whole file is shorter, or where no block could be made unique."""
    old, new = parent.split("\n"), child.split("\n")
    changes = [
        list(code[1:]) for code in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"
    ]
    if sum(high - low for low, high, _, _ in changes) > WHOLE_ABOVE * len(old):
        return None
    said = []
    for low, high, start, stop in _unique(changes, old):
        said += [SEARCH, *old[low:high], DIVIDE, *new[start:stop], REPLACE, ""]
    blocks = "\n".join(said).rstrip()
    return blocks if blocks and kernel_of(blocks, parent).text == child else None


def _unique(changes: list[list[int]], old: list[str]) -> list[list[int]]:
    """Changes with as many lines around each as it takes for its lines to stand in the source once; joined if near."""
    grown: list[list[int]] = []
    for change in changes:
        low, high, start, stop = change
        while (high == low or _places(old, old[low:high]) != 1) and (low > 0 or high < len(old)):
            if low > 0:
                low, start = low - 1, start - 1
            if (high == low or _places(old, old[low:high]) != 1) and high < len(old):
                high, stop = high + 1, stop + 1
        if grown and low < grown[-1][1]:
            grown[-1][1], grown[-1][3] = max(grown[-1][1], high), max(grown[-1][3], stop)
        else:
            grown.append([low, high, start, stop])
    return grown


def _places(lines: list[str], wanted: list[str]) -> int:
    size = len(wanted)
    bare = [line.rstrip() for line in wanted]
    if not any(bare):
        return 0
    return sum([line.rstrip() for line in lines[at : at + size]] == bare for at in range(len(lines) - size + 1))
