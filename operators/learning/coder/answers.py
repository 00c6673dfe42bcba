"""From a completion to a kernel: a whole file, search/replace blocks (docs/guides/agents.md) or numbered lines.

Reading is strict and never raises: a completion that holds no edit is worth a reward like any other, a low one.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

from evo_kernel.syntax import parse_module
from operators.learning.coder.lines import BadLines, applied, is_edit
from operators.micro.edit_blocks import DIVIDE, REPLACE, SEARCH, MalformedAnswer, apply, feedback, parse

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
        text = applied(completion, parent) if is_edit(completion) else _edited(completion, parent)
        parse_module(text)
    except (BadLines, MalformedAnswer) as error:
        return Written(None, str(error))
    except (SyntaxError, ValueError, RecursionError) as error:
        return Written(None, f"what it makes of the source is no Python: {error}")
    if text.strip() == parent.strip():
        return Written(None, "it leaves the source as it was")
    return Written(text)


def _edited(completion: str, parent: str) -> str:
    edited = apply(parse(completion), parent)
    if edited.misfits:
        raise MalformedAnswer(feedback(edited))
    return edited.text


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
