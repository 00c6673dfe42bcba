"""An example as tokens: BEGIN strategy ASK numbered-source ANSWER edit END. The edit is in the form of `lines.py`."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from evo_kernel.types import Strategy
from operators.learning.coder.examples import Example
from operators.learning.coder.lines import numbered, written
from operators.learning.coder.scratch.names import Names, usual_names
from operators.learning.coder.scratch.vocabulary import ANSWER, ASK, BEGIN, END, Vocabulary

_DEAF = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever waits for them
MANY = 4000  # examples from which on it is worth to start processes


@dataclass(frozen=True)
class Request:
    """A prompt as tokens, and what it takes to read an answer to it."""

    prompt: tuple[int, ...] = field(repr=False)
    names: Names = field(repr=False)

    def read(self, vocabulary: Vocabulary, answer: Sequence[int]) -> str:
        """The edit that the tokens of an answer spell."""
        return vocabulary.decode(answer, self.names)


@dataclass(frozen=True)
class PromptLesson:
    """`prompt` and `answer` as tokens; END closes the answer."""

    prompt: tuple[int, ...] = field(repr=False)
    answer: tuple[int, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)

    def shuffled(self, vocabulary: Vocabulary, rng: np.random.Generator) -> PromptLesson:
        """The same lesson with its names in other slots and its lines counted from another number."""
        tokens = vocabulary.shuffled(np.array((*self.prompt, *self.answer)), rng).tolist()
        return PromptLesson(tuple(tokens[: len(self.prompt)]), tuple(tokens[len(self.prompt) :]))


def request(vocabulary: Vocabulary, strategy: Strategy, parent: str) -> Request:
    names = Names.of(parent, usual=vocabulary.usual)
    asked, source = vocabulary.encode(strategy.key, names), vocabulary.encode(numbered(parent), names)
    return Request((BEGIN, *asked, ASK, *source, ANSWER), names)


def lesson(vocabulary: Vocabulary, one: Example) -> PromptLesson:
    names = Names.of(one.parent, one.child, vocabulary.usual)
    answer = (*vocabulary.encode(written(one.parent, one.child), names), END)
    return PromptLesson(request(vocabulary, one.strategy, one.parent).prompt, answer)


def lessons(vocabulary: Vocabulary, examples: Sequence[Example], workers: int = 1) -> list[PromptLesson]:
    """In order; many are made by so many processes, a millisecond each."""
    if workers <= 1 or len(examples) <= MANY:
        return [lesson(vocabulary, one) for one in examples]
    bare = [replace(one, messages=(), reasoning="") for one in examples]  # what nobody needs there
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), signal.signal, _DEAF) as pool:
        return list(pool.map(partial(lesson, Vocabulary.of(vocabulary.data())), bare, chunksize=200))


def vocabulary_of(examples: Sequence[Example], size: int) -> Vocabulary:
    """Learnt from these; what has a slot is left out of its pairs."""
    usual = usual_names((one.parent, one.child) for one in examples)
    texts: list[str] = []
    for one in examples:
        names = Names.of(one.parent, one.child, usual)
        for text in (one.strategy.key, numbered(one.parent), written(one.parent, one.child)):
            texts += [piece for piece in names.split(text) if isinstance(piece, str)]
    return Vocabulary.learnt(texts, size, usual)
