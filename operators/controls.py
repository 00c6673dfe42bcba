"""Controls: a language model without evolution around it. Does the search earn its keep?

    BestOfN      every attempt starts from the first kernel and knows of no other: independent samples
    Sequential   every attempt starts from the best so far and reads what the last ones came to
    LongSession  one conversation that goes on from attempt to attempt, told each verdict

Each writes code as a coder without strategies does (edits probed and repaired, `micro/session.py`), and is held to the
same ledger, judge and tuner as any operator. None needs the archive: what they are given in its place is a Lineage.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Probe, Proposal, Relative, Source
from operators.llm.base import Message, Model, Reply, Tool
from operators.macro.catalogue import UNGUIDED
from operators.micro.llm_coder import ALONE, known
from operators.micro.session import Limits, Opening, Session, quoted
from operators.prompts.evidence import verdict
from operators.prompts.parts import Part
from operators.prompts.relatives import relatives_text, shown
from operators.prompts.writer import Prompts, looked_up, user

SHOWN = 5  # earlier tries that a sequential attempt reads
TURNS = 24  # messages of a long session that are kept after its opening


class Lineage(Protocol):
    """The candidates so far, as they were scored (knobs written in). Thread-safe."""

    def first(self) -> Relative: ...

    def best(self) -> Relative | None: ...

    def latest(self, count: int) -> Sequence[Relative]:
        """The youngest, youngest first."""
        ...

    def spoken(self, operator: str) -> Sequence[Message]:
        """The conversation that the youngest candidate of this operator came of, its last answer included; empty
        where there is none."""
        ...


class _Control:
    """What the controls share. Thread-safe."""

    name = ""

    def __init__(
        self, model: Model, lineage: Lineage, prompts: Prompts | None = None, limits: Limits | None = None
    ) -> None:
        self._model, self._lineage = model, lineage
        self._prompts, self._limits = prompts or Prompts(), limits or Limits()

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return False  # no strategy is claimed

    def learn(self, credit: Credit) -> None:
        """Nothing is learnt: that is what these are controls of."""

    def opening(self, brief: Brief, source: Source, *more: Part) -> Opening:
        prompts = self._prompts
        parts = [*more, *prompts.situation(brief, source, query=looked_up(brief))]
        messages = (prompts.system(brief.task, brief.environment, *ALONE), user(parts))
        return Opening(messages, shown(source.text, prompts.budgets.source)[1])

    def _start(self) -> Relative:
        return self._lineage.best() or self._lineage.first()

    def _work(self, session: Session, parent: Relative) -> Proposal:
        began = time.monotonic()
        try:
            coded = session.work()
        except OperatorFailed as failure:
            failure.operator = self.name
            raise
        return Proposal(
            source=Source(coded.text, parent.source.language),
            operator=self.name,
            strategy=UNGUIDED,
            parents=(("parent", parent.candidate),),
            steps=coded.steps,
            calls=coded.calls,
            probes=coded.probes,
            wall_s=time.monotonic() - began,
        )


class BestOfN(_Control):
    """N samples of one prompt; the best of them is what the population keeps anyway."""

    name = "best-of-n"

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        parent = self._lineage.first()
        alone = dataclasses.replace(brief, parent=parent, inspirations=(), tried=())
        session = Session(
            self._model,
            lambda source: self.opening(alone, source),
            parent.source,
            probe,
            self._limits,
            known(alone, self._prompts),
            self._prompts.switches.category,
        )
        return self._work(session, parent)


class Sequential(_Control):
    """Each sample is conditioned on those before it."""

    name = "sequential"

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        parent = self._start()
        alone = dataclasses.replace(brief, parent=parent, inspirations=(), tried=())
        past = [("an earlier try", one) for one in self._lineage.latest(SHOWN) if one.candidate != parent.candidate]
        earlier = Part(
            "Earlier tries, youngest first", relatives_text(past, parent, self._prompts.budgets.inspirations)
        )
        session = Session(
            self._model,
            lambda source: self.opening(alone, source, earlier),
            parent.source,
            probe,
            self._limits,
            known(alone, self._prompts),
            self._prompts.switches.category,
        )
        return self._work(session, parent)


class LongSession(_Control):
    """One conversation. Attempts take turns in it, however many are in flight.

    What is kept of it is bounded: the opening and the last TURNS messages. A later session goes on with the
    conversation that its youngest candidate came of: attempts that came to nothing since then are not in it.
    """

    name = "session"

    def __init__(
        self, model: Model, lineage: Lineage, prompts: Prompts | None = None, limits: Limits | None = None
    ) -> None:
        super().__init__(model, lineage, prompts, limits)
        self._turn = threading.Lock()
        self._opened: Opening | None = None
        self._said: tuple[Message, ...] = ()
        self._shown = 0  # the candidate whose source the conversation saw last
        self._proposed = ""  # sha256 of what it proposed last

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        with self._turn:
            if self._opened is None:
                self._go_on()
            parent = self._start()
            alone = dataclasses.replace(brief, parent=parent, inspirations=(), tried=())
            ear = _Ear(self._model, self._limits.max_tokens)
            opened, said = self._opened or self.opening(alone, parent.source), self._said
            if self._opened is not None:
                said = (*said, self._verdicts(parent))
            session = Session(
                ear,
                lambda source: dataclasses.replace(opened, messages=(*opened.messages, *said)),
                parent.source,
                probe,
                self._limits,
                known(alone, self._prompts),
                self._prompts.switches.category,
            )
            try:
                proposal = self._work(session, parent)
                self._proposed = proposal.source.sha256
                return proposal
            finally:
                if ear.heard:  # what a model that is down was not told is told the next time
                    self._opened, self._shown = opened, parent.candidate
                    self._said = _last(ear.heard[len(opened.messages) :])

    def _go_on(self) -> None:
        """Take up the conversation of an earlier session, if there was one; the next turn shows the source anew."""
        heard = tuple(self._lineage.spoken(self.name))
        begins = next((at for at, one in enumerate(heard) if one.role == "assistant"), 0)
        if begins:
            self._opened, self._said = Opening(heard[:begins]), _last(heard[begins:])

    def _verdicts(self, parent: Relative) -> Message:
        """What came of its last proposal, and what the next edit applies to."""
        found = next((one for one in self._lineage.latest(SHOWN) if self._proposed in _texts(one)), None)
        came = f"Your last kernel (candidate {found.candidate}): {verdict(found.evaluation)}" if found else ""
        best = f"The fastest so far is candidate {parent.candidate}: {verdict(parent.evaluation)}"
        source = f"```python\n{parent.source.text.rstrip()}\n```" if parent.candidate != self._shown else ""
        again = "Its source is the last one that you were shown." if not source else "Its source:"
        ask = "Make it faster still, by another change. Edits apply to that source."
        return Message("user", "\n".join(line for line in (came, best, again, source, ask) if line))


def _texts(relative: Relative) -> tuple[str, ...]:
    """sha256 of its source, and of the text that was judged: without the knobs that were set later."""
    judged = relative.evaluation.source if relative.evaluation is not None else ""
    return relative.source.sha256, judged


class _Ear:
    """A model that remembers the last conversation it was asked to continue, its answer included."""

    def __init__(self, model: Model, max_tokens: int) -> None:
        self.name, self._model, self._max_tokens = model.name, model, max_tokens
        self.heard: tuple[Message, ...] = ()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        reply = self._model.complete(messages, tools=tools, schema=schema, max_tokens=max_tokens)
        answer = Message("assistant", quoted(reply.message.content, self._max_tokens))
        self.heard = (*messages, answer)
        return reply


def _last(said: Sequence[Message]) -> tuple[Message, ...]:
    """The last turns, from an answer of the model on: the opening before them ends with a request."""
    kept = list(said[-TURNS:])
    while kept and kept[0].role != "assistant":
        kept.pop(0)
    return tuple(kept)
