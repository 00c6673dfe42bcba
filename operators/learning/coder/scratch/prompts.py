"""An example as tokens: BEGIN strategy ASK numbered-source ANSWER edit END. The edit is in the form of `lines.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from evo_kernel.types import Strategy
from operators.learning.coder.examples import Example
from operators.learning.coder.lines import numbered, written
from operators.learning.coder.scratch.vocabulary import ANSWER, ASK, BEGIN, END, Vocabulary


@dataclass(frozen=True)
class Lesson:
    """`prompt` and `answer` as tokens; END closes the answer."""

    prompt: tuple[int, ...] = field(repr=False)
    answer: tuple[int, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def prompt_text(strategy: Strategy, parent: str) -> tuple[str, str]:
    """What is asked, and of which source."""
    return strategy.key, numbered(parent)


def prompt_tokens(vocabulary: Vocabulary, strategy: Strategy, parent: str) -> tuple[int, ...]:
    asked, source = prompt_text(strategy, parent)
    return (BEGIN, *vocabulary.encode(asked), ASK, *vocabulary.encode(source), ANSWER)


def lesson(vocabulary: Vocabulary, one: Example) -> Lesson:
    answer = (*vocabulary.encode(written(one.parent, one.child)), END)
    return Lesson(prompt_tokens(vocabulary, one.strategy, one.parent), answer)


def lessons(vocabulary: Vocabulary, examples: Iterable[Example], context: int) -> list[Lesson]:
    """Those that fit into the context; what does not cannot be learnt here."""
    found = (lesson(vocabulary, one) for one in examples)
    return [one for one in found if len(one) <= context]


def corpus(examples: Sequence[Example]) -> list[str]:
    """The texts that a vocabulary is learnt from."""
    texts: list[str] = []
    for one in examples:
        texts += [*prompt_text(one.strategy, one.parent), written(one.parent, one.child)]
    return texts
