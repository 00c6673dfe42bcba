"""Training examples of coders: (task, parent kernel, strategy) -> the kernel that came of it, and why.

A file of examples is JSON lines: a conversation in `messages` (what TRL and most trainers read), and beside it the
columns that our own loops and the reward need: task, family, split, parent, child, action, gain, witnessed, origin.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.types import Status, Strategy
from operators.learning.coder.answers import answer_text, reasoning_of
from operators.learning.tree import HELD_OUT, INVENTED, Tree, family_of, strategy_data, strategy_of
from operators.llm.transcript import unpack
from operators.macro.catalogue import description
from operators.micro.edit_blocks import given_up, parse
from operators.micro.llm_coder import strategy_text

LINES_AT_ONCE = 200  # that a process is given to write
MOST_REASONING = 4000  # characters of what an agent wrote beside its edit

SYSTEM = """You make GPU kernels written in Triton faster, one structural change at a time. You are given a task, its \
kernel and one strategy. Carry out this strategy and nothing else; the results must stay the same. Answer with \
search/replace blocks, or with the whole file in one ```python fence.

A block, each marker alone on its line; the lines to find must stand in the source once, exactly:
<<<<<<< SEARCH
lines as they stand
=======
lines as they become
>>>>>>> REPLACE"""


@dataclass(frozen=True)
class Example:
    """One edit. `gain`: log(parent's time ÷ child's); None where they were not both timed in one environment.

    `status`: the judge's verdict on the child; None where nobody judged it. `origin`: where it comes from.
    """

    task: str
    parent: str = field(repr=False)
    child: str = field(repr=False)
    strategy: Strategy
    status: Status | None = None
    witnessed: bool = False
    gain: float | None = None
    reasoning: str = field(default="", repr=False)
    origin: str = ""
    family: str = ""
    split: str = "train"
    messages: tuple[Mapping[str, str], ...] = field(default=(), repr=False)  # how the coder of a run is asked

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Examples with one key are one: the same edit, whoever made it."""
        return self.task, self.parent.strip(), self.strategy.key, self.child.strip()


@dataclass(frozen=True)
class Wanted:
    """Which are kept; what nobody judged is held against the last two alone. `gain`: least log gain; None: any, unknown
    too."""

    witnessed: bool = True
    gain: float | None = None
    strategies: frozenset[str] = frozenset()  # names; empty: all
    characters: int = 0  # of parent and child each at most; 0: any

    def fits(self, one: Example) -> bool:
        if self.characters and max(len(one.parent), len(one.child)) > self.characters:
            return False
        if self.strategies and one.strategy.name not in self.strategies:
            return False
        if one.status is None:
            return True
        enough = self.gain is None or (one.gain is not None and one.gain >= self.gain)
        return enough and one.status is Status.PASSED and (one.witnessed or not self.witnessed)


def placed(one: Example, held_out: Sequence[str]) -> Example:
    """With family and split. `held_out`: families, or names of tasks; empty: as in the trees that are shipped."""
    task = one.task.partition("@")[0]
    family = one.family or family_of(task)
    out = family in (held_out or HELD_OUT) or task in held_out
    return replace(one, family=family, split="held-out" if out else "train")


def kept(examples: Iterable[Example], wanted: Wanted, held_out: Sequence[str] = ()) -> Iterator[Example]:
    """Those that are wanted, each once, with family and split."""
    seen: set[tuple[str, str, str, str]] = set()
    for one in examples:
        if wanted.fits(one) and one.key not in seen and one.parent.strip() != one.child.strip():
            seen.add(one.key)
            yield placed(one, held_out) if not one.family or held_out else one


def of_tree(tree: Tree, origin: str = "tree") -> Iterator[Example]:
    """Every edge of a tree whose child is known; family and split are the tree's."""
    for state in tree.states.values():
        offers = {strategy.key: strategy for strategy in state.offers}
        for key, edge in tree.edges(state.id).items():
            if edge.child is None or edge.status is None or key not in offers or edge.child == state.id:
                continue
            yield Example(
                task=state.task, parent=state.text, child=tree.states[edge.child].text, strategy=offers[key],
                status=edge.status, witnessed=edge.witnessed, gain=edge.log_gain, origin=origin,
                family=state.family, split=state.split,
            )  # fmt: skip


def reasoning_in(calls: Sequence[Any]) -> str:
    """What the agent wrote beside its last edit, from the calls of a proposal; empty of a rewriter."""
    for call in reversed(calls):
        try:
            said = (unpack(call.messages).get("reply") or {}).get("content") or ""
            if not isinstance(said, str) or given_up(said):
                continue
            parse(said)  # an answer that holds an edit: others came to nothing
        except (ValueError, AttributeError):  # malformed; or kept by another version, or cut off
            continue
        return reasoning_of(said)[:MOST_REASONING]
    return ""


def rewarded(examples: Iterable[Example], tasks: Sequence[str] = ()) -> list[Example]:
    """Those on whose requests rewards can be earned: of these tasks, or of all that a judge can load again."""
    known = (one for one in examples if one.family != INVENTED)
    return [one for one in known if not tasks or is_of(one, tasks)]


def is_of(one: Example, tasks: Collection[str]) -> bool:
    """Whether its task is one of these, or a single case of one (`softmax@m4096-n4096`)."""
    return one.task in tasks or one.task.partition("@")[0] in tasks


# -- conversations and files -----------------------------------------------------------------------------------------


def request(one: Example, about: str = "") -> list[dict[str, str]]:
    """What the model is asked: system and user. `about`: the task in a sentence."""
    if one.messages:
        return [dict(message) for message in one.messages]
    task = f"Task {one.task}" + (f": {about.strip()}" if about.strip() else "")
    said = strategy_text(one.strategy, description(one.strategy))
    user = f"{task}\n\nThe strategy to carry out\n{said}\n\nThe kernel\n```python\n{one.parent.rstrip()}\n```"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]


def row(one: Example, about: str = "") -> dict[str, Any]:
    """The line of a file."""
    answer = {"role": "assistant", "content": answer_text(one.parent, one.child, one.reasoning)}
    gain = one.gain if one.gain is not None and math.isfinite(one.gain) else None
    return {
        "messages": [*request(one, about), answer], "task": one.task, "family": one.family, "split": one.split,
        "strategy": one.strategy.key, "action": json.dumps(strategy_data(one.strategy)), "parent": one.parent,
        "child": one.child, "gain": gain, "witnessed": one.witnessed,
        "status": None if one.status is None else str(one.status), "origin": one.origin,
    }  # fmt: skip


def write(
    path: Path, examples: Iterable[Example], about: Callable[[str], str] = lambda task: "", workers: int = 1
) -> int:
    """Writes a file, whole or not at all; returns how many lines it has. `workers`: processes that write lines."""
    part, count, given = path.with_name(path.name + ".part"), 0, ((one, about(one.task)) for one in examples)
    with contextlib.ExitStack() as stack:
        file, lines = stack.enter_context(part.open("w", encoding="utf-8")), map(_line, given)
        if workers > 1:
            pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
            lines = stack.enter_context(pool).map(_line, given, chunksize=LINES_AT_ONCE)
        for line in lines:
            file.write(line)
            count += 1
    part.replace(path)
    return count


def _line(given: tuple[Example, str]) -> str:
    return json.dumps(row(*given), ensure_ascii=False) + "\n"


def read(path: Path) -> list[Example]:
    """Raises UserError with the line that is none."""
    found: list[Example] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the examples cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            said = data["messages"]
            found.append(
                Example(
                    task=data["task"], parent=data["parent"], child=data["child"],
                    strategy=strategy_of(json.loads(data["action"])),
                    status=None if data["status"] is None else Status(data["status"]), witnessed=data["witnessed"],
                    gain=data["gain"], reasoning=reasoning_of(said[-1]["content"]), origin=data["origin"],
                    family=data["family"], split=data["split"], messages=tuple(said[:-1]),
                )
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(
                f"{path}, line {number}: no example ({type(error).__name__}: {error}). "
                "Write the file with `evo-kernel train export-sft`."
            ) from None
    return found
