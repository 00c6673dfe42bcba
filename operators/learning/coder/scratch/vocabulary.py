"""Tokens: byte pairs learnt from a corpus of code; line marks (`@12`) and names are tokens of their own.

Any text can be written: what no pair covers is written byte by byte. Learning is the usual greedy one (Gage 1994;
Sennrich et al. 2016, arXiv:1508.07909), over words that begin with their blank and lines that begin with their indent.

A small network that sees names learns programs by heart: whoever knows `row_max` knows which line comes next. So each
identifier that a source binds is a slot, one token, and which one is drawn anew whenever an example is learnt from;
copying it is the only way to be right. What an answer binds besides has a slot, too: that of its name where many
answers use it, else a fresh one, spelled when the answer is read.

Nothing is lost by a wrong guess at what is bound: a slot stands for one spelling, wherever it occurs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.micro.syntax import fresh_name

SLOTS = 128  # names of one source; further ones stay spelled
USUAL = 32  # names that answers give again and again, as STAGES
FRESH = 16  # other new names of an answer, of either case; further ones stay spelled
KINDS = {"known": SLOTS, "usual": USUAL, "lower": FRESH, "upper": FRESH}
_IDENTIFIER = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_BINDINGS = re.compile(
    r"^[ \t]*(?P<targets>[A-Za-z_]\w*(?:, *[A-Za-z_]\w*)*),? (?:[-+*/%|&^]|//|\*\*|<<|>>)?= "
    r"|^[ \t]*def (?P<function>\w+)\((?P<parameters>[^)]*)"
    r"|\bfor (?P<each>[\w, ]+) in\b|\bas (?P<alias>[A-Za-z_]\w*)",
    re.MULTILINE,
)
_KEPT = frozenset({"run", "self", "torch", "triton", "tl", "_"})  # what every source calls the same
_STEMS = ("value", "count", "index", "piece", "first", "part", "offset", "size")
Slot = tuple[str, int]  # one of KINDS, and its number in it


@dataclass(frozen=True)
class Names:
    """`known`: what the source binds, in order. `fresh`: what an answer to it binds besides, in order.

    `parameters`: of their functions: `BLOCK=` at a launch is one, `mask=` of a library's call is not.
    """

    known: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    parameters: frozenset[str] = field(default=frozenset(), repr=False)
    words: frozenset[str] = field(default=frozenset(), repr=False)  # of the source, bound or not

    @staticmethod
    def of(source: str, child: str = "", usual: Sequence[str] = ()) -> Names:
        """Of a source, and of the child that an answer makes of it."""
        bound, parameters = _bound(source)
        later, more = _bound(child)
        fresh = tuple(name for name in later if name not in set(bound))
        words = frozenset(_IDENTIFIER.findall(source))
        return Names(tuple(bound), fresh, tuple(usual[:USUAL]), parameters | more, words)

    @cached_property
    def _slots(self) -> dict[str, Slot]:
        later = [name for name in self.fresh if name not in self.usual]
        numbered = {
            "usual": self.usual, "lower": [name for name in later if _kind(name) == "lower"],
            "upper": [name for name in later if _kind(name) == "upper"], "known": self.known,
        }  # fmt: skip
        return {
            name: (kind, at)
            for kind, names in numbered.items()
            for at, name in enumerate(names[: KINDS[kind]])
            if kind != "usual" or name not in self.words  # there it is the source's, seen as bound or not
        }

    def split(self, text: str) -> Iterator[str | Slot]:
        """The text in pieces, slots among them."""
        at = 0
        for match in _IDENTIFIER.finditer(text):
            slot = self._slots.get(match[0])
            keyword = text[match.end() :].startswith("=") and not text[match.end() :].startswith("==")
            if slot is None or (keyword and match[0] not in self.parameters):
                continue
            if match.start() > at:
                yield text[at : match.start()]
            yield slot
            at = match.end()
        if at < len(text):
            yield text[at:]

    def spelled(self, pieces: Sequence[str | Slot]) -> str:
        """The text of an answer; slots that nobody bound are new names."""
        words = self.words | {word for piece in pieces if isinstance(piece, str) for word in _IDENTIFIER.findall(piece)}
        made: dict[Slot, str] = {slot: name for name, slot in self._slots.items() if slot[0] != "usual"}
        for piece in pieces:
            if isinstance(piece, str) or piece in made:
                continue
            kind, number = piece
            wishes = [stem.upper() if kind == "upper" else stem for stem in _STEMS]
            if kind == "usual" and number < len(self.usual):
                wishes = [self.usual[number]]
            made[piece] = next((wish for wish in wishes if wish not in words), fresh_name(wishes[0], words))
            words |= {made[piece]}
        return "".join(piece if isinstance(piece, str) else made[piece] for piece in pieces)


def usual_names(answered: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The names that most children bind where their parents do not, from (parent, child)."""
    counts = Counter(name for parent, child in answered for name in Names.of(parent, child).fresh)
    often = [name for name, times in counts.most_common(USUAL) if times > 1]
    return tuple(often)


def _kind(name: str) -> str:
    return "upper" if name == name.upper() else "lower"


def _bound(source: str) -> tuple[list[str], frozenset[str]]:
    """Names that a source binds, each once, in order; and those of them that are parameters."""
    bound: list[str] = []
    parameters: list[str] = []
    for match in _BINDINGS.finditer(source):
        if match["function"]:
            said = [one.strip().lstrip("*") for one in match["parameters"].split(",")]
            own = [found[0] for one in said if (found := re.match(r"[A-Za-z_]\w*", one))]
            parameters += own
            bound += [match["function"], *own]
        else:
            targets = match["targets"] or match["each"] or match["alias"]
            bound += [one.strip() for one in targets.split(",") if one.strip()]
    return [name for name in dict.fromkeys(bound) if name not in _KEPT], frozenset(parameters)


LINES = 256  # line marks that are one token; a longer kernel is no task for a context of a thousand tokens
PAD, BEGIN, ASK, ANSWER, END = range(5)  # BEGIN strategy ASK source ANSWER edit END
_BYTES = 5
_MARKS = _BYTES + 256
_NAMES = _MARKS + LINES
_PAIRS = _NAMES + sum(KINDS.values())
_OF_KIND = dict(zip(KINDS, accumulate(KINDS.values(), initial=_NAMES), strict=False))  # kind -> its first token
_WORD = re.compile(rb"@\d{1,4}\b|\n *| ?[A-Za-z_][A-Za-z_.]*\(?| ?\d+| ?[^\sA-Za-z_\d@]+ ?|@|\s")
_MARK = re.compile(rb"@(\d{1,4})")


@dataclass(frozen=True)
class Vocabulary:
    """`pairs`: in the order in which they were learnt; pair i makes token `_PAIRS + i`. `usual`: see Names."""

    pairs: tuple[tuple[int, int], ...] = ()
    usual: tuple[str, ...] = ()
    _kept: dict[bytes, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    _pieces: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def learnt(texts: Iterable[str], size: int = 1024, usual: tuple[str, ...] = ()) -> Vocabulary:
        """Pairs until there are `size` tokens in all, or nothing repeats. `texts`: without what has a slot."""
        words = Counter(word for text in texts for word in _WORD.findall(text.encode()))
        spelled = {word: [byte + _BYTES for byte in word] for word in words if not _mark(word)}
        where: dict[tuple[int, int], set[bytes]] = {}
        counts: Counter[tuple[int, int]] = Counter()
        for word, tokens in spelled.items():
            for pair in pairwise(tokens):
                counts[pair] += words[word]
                where.setdefault(pair, set()).add(word)
        pairs: list[tuple[int, int]] = []
        while counts and _PAIRS + len(pairs) < size:
            best = max(counts, key=lambda pair: (counts[pair], pair))
            if counts[best] < 2:
                break
            for word in where.pop(best, ()):
                _join(spelled, word, best, _PAIRS + len(pairs), words[word], counts, where)
            counts.pop(best, None)
            pairs.append(best)
        return Vocabulary(tuple(pairs), usual)

    @property
    def size(self) -> int:
        return _PAIRS + len(self.pairs)

    @cached_property
    def _ranks(self) -> Mapping[tuple[int, int], int]:
        return {pair: rank for rank, pair in enumerate(self.pairs)}

    @cached_property
    def _spelling(self) -> list[bytes]:
        found = [b""] * _BYTES + [bytes([byte]) for byte in range(256)] + [b"@%d" % line for line in range(LINES)]
        found += [b""] * (_PAIRS - _NAMES)
        for one, two in self.pairs:
            found.append(found[one] + found[two])
        return found

    def encode(self, text: str, names: Names = Names()) -> list[int]:
        found: list[int] = []
        for piece in names.split(text):
            if not isinstance(piece, str):
                found.append(_OF_KIND[piece[0]] + piece[1])
                continue
            tokens = self._pieces.get(piece)  # what stands between names says the same things again and again
            if tokens is None:
                tokens = tuple(token for word in _WORD.findall(piece.encode()) for token in self._word(word))
                if len(self._pieces) < 100_000:
                    self._pieces[piece] = tokens
            found += tokens
        return found

    def decode(self, tokens: Sequence[int], names: Names = Names()) -> str:
        """Special tokens are nothing; half a character is a question mark."""
        pieces: list[str | Slot] = []
        spelled = bytearray()
        for token in tokens:
            if not _NAMES <= token < _PAIRS:
                spelled += self._spelling[token]
                continue
            kind = next(kind for kind in reversed(KINDS) if token >= _OF_KIND[kind])
            pieces += [spelled.decode("utf-8", "replace"), (kind, token - _OF_KIND[kind])]
            spelled.clear()
        return names.spelled([*pieces, spelled.decode("utf-8", "replace")])

    def _word(self, word: bytes) -> tuple[int, ...]:
        if word in self._kept:
            return self._kept[word]
        mark = _mark(word)
        tokens = [_MARKS + mark - 1] if mark else [byte + _BYTES for byte in word]
        while len(tokens) > 1:
            ranked = [(self._ranks.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(tokens))]
            rank, at = min(ranked)
            if rank == 1 << 30:
                break
            tokens[at : at + 2] = [_PAIRS + rank]
        if len(self._kept) < 50_000:
            self._kept[word] = tuple(tokens)
        return tuple(tokens)

    def data(self) -> dict[str, Any]:
        return {"pairs": [list(pair) for pair in self.pairs], "usual": list(self.usual)}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Vocabulary:
        pairs = tuple((int(one), int(two)) for one, two in data["pairs"])
        return Vocabulary(pairs, tuple(str(name) for name in data["usual"]))

    def shuffled(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """The same text with other slots for known names, and every other time with lines counted from elsewhere."""
        exchanged = np.arange(self.size)
        known = _OF_KIND["known"] + np.arange(KINDS["known"])
        exchanged[known] = rng.permutation(known)
        marks = tokens[(tokens >= _MARKS) & (tokens < _NAMES)]
        if len(marks) and rng.random() < 0.5:
            last = int(marks.max())
            exchanged[_MARKS : last + 1] += int(rng.integers(_NAMES - last))
        return exchanged[tokens]


def _mark(word: bytes) -> int:
    """1 + the line that a mark names, where it has a token; else 0."""
    found = _MARK.fullmatch(word)
    spelled_so = found is not None and b"@%d" % int(found[1]) == word
    return int(found[1]) + 1 if found is not None and spelled_so and int(found[1]) < LINES else 0


def _join(
    spelled: dict[bytes, list[int]],
    word: bytes,
    pair: tuple[int, int],
    made: int,
    times: int,
    counts: Counter[tuple[int, int]],
    where: dict[tuple[int, int], set[bytes]],
) -> None:
    """Replace a pair by its token in one word, and count its neighbours anew."""
    tokens = spelled[word]
    for one in pairwise(tokens):
        counts[one] -= times
    joined: list[int] = []
    at = 0
    while at < len(tokens):
        if tuple(tokens[at : at + 2]) == pair:
            joined.append(made)
            at += 2
        else:
            joined.append(tokens[at])
            at += 1
    spelled[word] = joined
    for one in pairwise(joined):
        counts[one] += times
        where.setdefault(one, set()).add(word)
