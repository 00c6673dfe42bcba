"""The answer of a coder model: search/replace blocks or one whole file, read strictly and applied exactly.

    answer = parse(text)             Raises MalformedAnswer: what is wrong, and what to write instead
    edited = apply(answer, source)   the text with every block that fits; what does not is in `edited.misfits`

Nothing is guessed: a block's lines must stand in the text once, as they are (trailing blanks aside). A misfit is
answered with the nearest lines, so that the next answer can be exact. The format is in docs/guides/agents.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

SEARCH, DIVIDE, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
CONTINUE = "CONTINUE"
"""A line of its own after the code: this was one step, and there is more to do once it has passed."""

GIVE_UP = "GIVE UP:"
"""The start of a line of an answer without an edit: nothing sensible can be done, and why."""

COMPARED_LINES, COMPARED_WIDTH = 12, 160
"""Of a block that does not fit, so much is compared with the source: time grows with the square of both."""

FILE_LANGUAGES = ("", "python", "py", "python3")
_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})\s*+([^`\s]*)\s*$")
_MARKER = re.compile(r"^(<{5,}|={5,}|>{5,})(\s|$)")
_ELIDED = re.compile(
    r"^\s*(#|//|\.\.\.).*\b(rest|remaining|unchanged|omitted|elided|existing code|same as (before|above)|as before)\b",
    re.I,
)
_MARKERS_SAID = f"`{SEARCH}`, `{DIVIDE}` and `{REPLACE}`, each alone on its line, with seven marks"


class MalformedAnswer(ValueError):
    """The answer is in no form that can be applied. The message says why, and what to write."""


@dataclass(frozen=True)
class EditBlock:
    """Lines to find, and what stands there afterwards; an empty `replace` deletes them."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True)
class EditAnswer:
    """Either `blocks` or a `whole` file. `more`: the model wants another turn once this step has passed."""

    blocks: tuple[EditBlock, ...] = ()
    whole: str | None = None
    more: bool = False


@dataclass(frozen=True)
class Edited:
    """`applied` and `misfits` number the blocks from 1; a misfit says what is wrong with it."""

    text: str
    applied: tuple[int, ...] = ()
    misfits: tuple[tuple[int, str], ...] = ()


def parse(text: str) -> EditAnswer:
    """Read an answer. Raises MalformedAnswer."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if "\0" in text:
        raise MalformedAnswer("the answer holds a NUL byte; write plain text")
    blocks, outside = _blocks(lines)
    if not blocks:
        whole, outside = _whole_file(lines)
        return EditAnswer(whole=whole, more=_wants_more(outside))
    fenced, outside = _fenced(outside)
    if any(_is_file(body) for _language, body in fenced):
        raise MalformedAnswer("the answer holds blocks and a whole file; send one of the two")
    bodies = [line for _language, body in fenced for line in body]
    return EditAnswer(blocks=blocks, more=_wants_more([*outside, *bodies]))


def given_up(text: str) -> str:
    """Why the model gives up, where an answer does; empty where it does not, or holds an edit besides."""
    lines = [line.strip().strip("*`") for line in text.split("\n")]
    said = next((line.removeprefix(GIVE_UP).strip() for line in lines if line.startswith(GIVE_UP)), None)
    if said is None or any(_MARKER.match(line) or _FENCE.match(line) for line in lines):
        return ""
    return said or "no reason given"


def apply(answer: EditAnswer, text: str) -> Edited:
    """Blocks are applied in order, each to what the earlier ones left. Never raises for a parsed answer."""
    if answer.whole is not None:
        return Edited(answer.whole, (1,))
    applied, misfits = [], []
    for number, block in enumerate(answer.blocks, start=1):
        changed, reason = _replaced(text, block)
        if changed is None:
            misfits.append((number, reason))
        else:
            text = changed
            applied.append(number)
    return Edited(text, tuple(applied), tuple(misfits))


def feedback(edited: Edited) -> str:
    """What to tell the model of blocks that did not fit."""
    told = [f"Block {number} could not be applied: {reason}" for number, reason in edited.misfits]
    if edited.applied:
        names = ", ".join(map(str, edited.applied))
        told.append(f"Already in, do not send again: block {names}.")
    return "\n\n".join(told)


# -- search/replace blocks -----------------------------------------------------------------------------------------


def _blocks(lines: Sequence[str]) -> tuple[tuple[EditBlock, ...], list[str]]:
    """Every block, in order, and the lines outside of them. Raises MalformedAnswer."""
    found: list[EditBlock] = []
    outside: list[str] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        mark = line.rstrip()
        if search is None:
            if mark == SEARCH:
                search = []
            elif _MARKER.match(line) and (set(mark) != {"="} or mark == DIVIDE):  # else: a heading's underline
                raise MalformedAnswer(f"line {number} is {mark!r} outside a block; the markers are {_MARKERS_SAID}")
            else:
                outside.append(line)
        elif replace is None and mark == DIVIDE:
            replace = []
        elif replace is not None and mark == REPLACE:
            found.append(_checked(search, replace, len(found) + 1))
            search = replace = None
        elif _MARKER.match(line):
            expected = DIVIDE if replace is None else REPLACE
            raise MalformedAnswer(f"line {number} is {mark!r} where block {len(found) + 1} needs `{expected}`")
        else:
            (search if replace is None else replace).append(line)
    if search is not None:
        missing = DIVIDE if replace is None else REPLACE
        raise MalformedAnswer(
            f"block {len(found) + 1} has no `{missing}`: the answer ends inside it. Send this block again, whole"
        )
    return tuple(found), outside


def _wants_more(lines: Sequence[str]) -> bool:
    return any(line.strip() == CONTINUE for line in lines)


def _checked(search: list[str], replace: list[str], number: int) -> EditBlock:
    if not any(line.strip() for line in search):
        raise MalformedAnswer(
            f"block {number} has nothing between `{SEARCH}` and `{DIVIDE}`; put the lines there that stand by the place"
        )
    if [line.rstrip() for line in search] == [line.rstrip() for line in replace]:
        raise MalformedAnswer(f"block {number} replaces lines by themselves; leave it out, or write the change")
    if any(_FENCE.match(line) for line in (*search, *replace)):
        raise MalformedAnswer(f"block {number} holds a code fence; a block is source text alone")
    elided = _elision(replace, search)
    if elided:
        raise MalformedAnswer(f"block {number} leaves code out ({elided.strip()!r}); write every line")
    return EditBlock(tuple(search), tuple(replace))


def _replaced(text: str, block: EditBlock) -> tuple[str | None, str]:
    """The text after a block, or None and the reason."""
    lines = text.split("\n")
    wanted = [line.rstrip() for line in _trimmed(block.search)]
    bare = [line.rstrip() for line in lines]
    size = len(wanted)
    places = [at for at in range(len(bare) - size + 1) if bare[at : at + size] == wanted]
    if len(places) == 1:
        at = places[0]
        # Blank lines around the searched ones were not matched, so those around the new ones are dropped too.
        return "\n".join([*lines[:at], *_trimmed(block.replace), *lines[at + size :]]), ""
    if places:
        told = ", ".join(str(at + 1) for at in places[:6])
        return None, f"its search lines stand at {len(places)} places (lines {told}); add lines until only one fits."
    new = [line.rstrip() for line in _trimmed(block.replace)]
    if new and any(bare[at : at + len(new)] == new for at in range(len(bare) - len(new) + 1)):
        return None, "its search lines are not in the source, but its replacement is: it seems to be in already."
    return None, f"its search lines are not in the source.{_nearest(bare, wanted)}"


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """The lines that look most like what was searched for, numbered, to copy from."""
    size = min(len(wanted), COMPARED_LINES)
    windows = range(max(len(lines) - size + 1, 1))
    exact, lines = lines, [line[:COMPARED_WIDTH] for line in lines]
    goal = "\n".join(line[:COMPARED_WIDTH] for line in wanted[:size])
    matcher = SequenceMatcher(autojunk=False, b=goal)

    def likeness(at: int) -> float:
        matcher.set_seq1("\n".join(lines[at : at + size]))
        return matcher.quick_ratio()

    # quick_ratio is an upper bound: the exact ratio is taken of the five best only.
    best = sorted(windows, key=likeness, reverse=True)[:5]
    scored = [
        (SequenceMatcher(None, "\n".join(lines[at : at + size]), goal, autojunk=False).ratio(), at) for at in best
    ]
    ratio, at = max(scored, key=lambda pair: (pair[0], -pair[1]))
    if ratio < 0.5:
        return " Nothing there is like them: copy the lines to replace from the source as it stands."
    if size < len(wanted):  # of a long block, show where it first differs
        at += next((n for n, (one, two) in enumerate(zip(exact[at:], wanted, strict=False)) if one != two), 0)
    shown = "\n".join(exact[max(at - 1, 0) : at + size + 1])
    return f" The nearest are at line {at + 1}:\n```\n{shown}\n```\nCopy them exactly, indentation included."


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Without blank lines at either end."""
    filled = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[filled[0] : filled[-1] + 1]) if filled else []


# -- whole files ---------------------------------------------------------------------------------------------------


def _whole_file(lines: Sequence[str]) -> tuple[str, list[str]]:
    """The one fenced file, and the lines outside. Raises MalformedAnswer."""
    fenced, outside = _fenced(lines)
    if not fenced:
        raise MalformedAnswer(
            f"the answer holds no edit: write blocks ({_MARKERS_SAID}), or the whole file in one ```python fence"
        )
    for language, _body in fenced:
        if language not in FILE_LANGUAGES:
            raise MalformedAnswer(
                f"a fence says {language!r}; a file goes into one ```python fence, changes into blocks"
            )
    files = [body for _language, body in fenced if _is_file(body)]
    if len(files) > 1:
        raise MalformedAnswer(f"{len(files)} fences hold a `def run(`; send one whole file")
    if not files:
        raise MalformedAnswer(
            "no fence holds a top-level `def run(`, so this is no whole file; send all of it, or use blocks"
        )
    if len(fenced) > 1:
        raise MalformedAnswer("there are other fences beside the whole file; send the file alone, in one fence")
    elided = _elision(files[0], ())
    if elided:
        raise MalformedAnswer(f"the file leaves code out ({elided.strip()!r}); write all of it, or use blocks")
    return "\n".join(_trimmed(files[0])) + "\n", outside


def _is_file(body: Sequence[str]) -> bool:
    return any(line.startswith("def run(") for line in body)


def _fenced(lines: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """(language, lines) of every fence, and the lines outside. Raises MalformedAnswer where a fence does not end."""
    found: list[tuple[str, list[str]]] = []
    outside: list[str] = []
    fence = ""
    for line in lines:
        match = _FENCE.match(line)
        if not fence and match:
            fence = match[1]
            found.append((match[2].lower(), []))
        elif fence and match and match[1].startswith(fence) and not match[2]:
            fence = ""
        elif fence:
            found[-1][1].append(line)
        else:
            outside.append(line)
    if fence:
        raise MalformedAnswer("a code fence does not end: the answer was cut off. Send a smaller change, in blocks")
    return found, outside


def _elision(new: Sequence[str], old: Sequence[str]) -> str:
    """A line of the new text that stands for others, and was not in the old."""
    known = {line.strip() for line in old}
    fresh = (line for line in new if line.strip() not in known)
    return next((line for line in fresh if line.strip() in ("...", "…") or _ELIDED.match(line)), "")
