"""The long session: one conversation, over attempts and over sessions of a run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Relative, Source
from operators.controls import LongSession
from operators.llm.base import Message, ModelFailed
from tests.operators.golden_prompts import Past, sample
from tests.operators.support_model import FakeModel, Judged, block


class Talked(Past):
    def __init__(self, said: Sequence[Message], made: Relative) -> None:
        super().__init__()
        self.said, self.made = tuple(said), [made]

    def spoken(self, operator: str) -> tuple[Message, ...]:
        return self.said if operator == "session" else ()


def test_a_later_session_goes_on_with_the_conversation() -> None:
    brief, passes = sample(), Judged(lambda text: None)
    first = FakeModel(block("BLOCK = 256", "BLOCK = 512"))
    made = LongSession(first, Past()).propose(brief, passes)
    heard = (*first.asked[0], Message("assistant", block("BLOCK = 256", "BLOCK = 512")))
    tuned = Source(made.source.text.replace("BLOCK = 512", "BLOCK = 64"))  # as it is shown, with its knobs
    assert brief.parent.evaluation is not None
    verdict = dataclasses.replace(brief.parent.evaluation, source=made.source.sha256, score=1.5)

    again = FakeModel(block("BLOCK = 256", "BLOCK = 128"), block("BLOCK = 256", "BLOCK = 2048"))
    past = Talked(heard, Relative(40, tuned, 2, 0, verdict))
    later = LongSession(again, past)
    proposal = later.propose(brief, passes)
    asked = again.asked[0]
    assert asked[: len(heard)] == heard and len(asked) == len(heard) + 1
    assert "The fastest so far is candidate 12" in asked[-1].content
    assert asked[-1].content.count("def run(x)") == 1  # the source that edits apply to is shown anew

    past.made = [Relative(41, tuned, 2, 0, dataclasses.replace(verdict, source=proposal.source.sha256))]
    later.propose(brief, passes)
    assert "Your last kernel (candidate 41): Correct; score 1.5" in again.asked[1][-1].content  # though it was tuned


def test_what_a_model_that_is_down_was_not_told_is_not_in_the_conversation() -> None:
    down = ModelFailed("gone", "down")
    model = FakeModel(down, down, block("BLOCK = 256", "BLOCK = 512"), down, block("BLOCK = 256", "BLOCK = 128"))
    session = LongSession(model, Past())
    for _ in range(5):
        with contextlib.suppress(OperatorFailed):
            session.propose(sample(), Judged(lambda text: None))
    roles = [[one.role for one in asked] for asked in model.asked]
    assert roles == [["system", "user"]] * 3 + [["system", "user", "assistant", "user"]] * 2
