"""What a source calls its own things, as numbered slots.

A small network that sees names learns programs by heart: whoever knows `row_max` knows which line comes next. So each
identifier that a source binds is a slot, one token, and which one is drawn anew whenever an example is learnt from;
copying it is the only way to be right. What an answer binds besides has a slot, too: that of its name where many
answers use it, else a fresh one, spelled when the answer is read.

Nothing is lost by a wrong guess at what is bound: a slot stands for one spelling, wherever it occurs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
            if slot is None or (_is_keyword(text, match.end()) and match[0] not in self.parameters):
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
            if not isinstance(piece, str) and piece not in made:
                made[piece] = self._new_name(piece, words)
                words |= {made[piece]}
        return "".join(piece if isinstance(piece, str) else made[piece] for piece in pieces)

    def _new_name(self, slot: Slot, taken: Collection[str]) -> str:
        kind, number = slot
        if kind == "usual" and number < len(self.usual):
            return fresh_name(self.usual[number], taken)
        wishes = [stem.upper() if kind == "upper" else stem for stem in _STEMS]
        return next((wish for wish in wishes if wish not in taken), fresh_name(wishes[0], taken))


def usual_names(answered: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The names that most children bind where their parents do not, from (parent, child)."""
    counts = Counter(name for parent, child in answered for name in Names.of(parent, child).fresh)
    often = [name for name, times in counts.most_common(USUAL) if times > 1]
    return tuple(often)


def _kind(name: str) -> str:
    return "upper" if name == name.upper() else "lower"


def _is_keyword(text: str, end: int) -> bool:
    return text[end : end + 1] == "=" and text[end + 1 : end + 2] != "="


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
