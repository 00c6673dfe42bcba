"""A session of a coder model on one change: answer, edit, probe, repair, and back to the last good step.

The repair of a failed edit applies to the source with that edit in it, so a mistake of one line costs one block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evo_kernel.errors import OperatorFailed
from evo_kernel.syntax import parse_module
from evo_kernel.types import Call, Probe, Source, Step
from operators.llm.base import Message, Model, ModelFailed, Reply
from operators.micro.coder import KEPT, ROLLED_BACK, Coded
from operators.micro.edit_blocks import EditAnswer, MalformedAnswer, apply, feedback, given_up, parse
from operators.prompts.evidence import ADVICE, EditFault, fault_of
from operators.prompts.parts import tokens, without_middle

REPAIRED = "repaired"
DETAIL = 600  # characters of a reason that a step keeps
QUOTED = 2  # times the tokens that an answer may have: estimates differ
MAX_SOURCE = 400_000  # bytes of a source: what no tool reads was written by no mind
GO_ON = "It passed and is in. Send the next edit; end with CONTINUE again if more must follow."


@dataclass(frozen=True)
class SessionLimits:
    """Of one change. `edits`: that may build on each other. `repairs`: failed answers that are answered, in all.

    `max_tokens`: of one answer. `fault_tokens`: of a reason in a repair request, estimated.
    """

    edits: int = 4
    repairs: int = 3
    max_tokens: int = 8192
    fault_tokens: int = 1200


@dataclass(frozen=True)
class Opening:
    """A prompt for the source as it stands. `whole`: all of the source is in it, so a whole file may be sent back."""

    messages: tuple[Message, ...]
    whole: bool = True


class _Fault(Exception):
    def __init__(self, fault: EditFault, reason: str) -> None:
        super().__init__(reason)
        self.fault, self.reason = fault, reason


class CoderSession:
    """One change, one thread; `work` once."""

    def __init__(
        self,
        model: Model,
        opening: Callable[[Source], Opening],
        source: Source,
        probe: Probe,
        limits: SessionLimits | None = None,
        known: Mapping[str, int] | None = None,
    ) -> None:
        """`known`: sha256 → candidate, of sources that are no news."""
        self._model, self._opening, self._probe = model, opening, probe
        self._limits, self._known = limits or SessionLimits(), dict(known or {})
        self._start = self._good = self._source = source
        self._opened = opening(source)
        self._messages: list[Message] = list(self._opened.messages)
        self._steps: list[Step] = []
        self._calls: list[Call] = []
        self._probes = 0
        self._failed: dict[str, str] = {}  # sha256 of sources that failed -> why
        self._more = False  # the last answer that was understood asks for another turn

    def work(self) -> Coded:
        """The last good source. Raises OperatorFailed when nothing came of it, with what it cost."""
        edits = failures = 0
        worst: _Fault | None = None  # the last one that says more than that an answer did not fit
        pending: _Fault | None = None  # what the present edit last failed by
        while True:
            started, reason = time.monotonic(), ""
            action = f"repair {failures} of edit {edits + 1}" if pending else f"edit {edits + 1}"
            try:
                reply = self._ask()
            except ModelFailed as failure:
                self._calls.extend(failure.calls)
                reply, reason = None, f"the model failed ({failure.kind}): {failure.reason}"
            if reply is not None and (declined := given_up(reply.message.content)):
                reason = f"the model gave up: {declined}"
            if reply is None or reason:
                self._note(action, ROLLED_BACK, reason, started)
                return self._ended(reason)
            try:
                self._take(reply)
            except _Fault as found:
                failures += 1
                worst = found if worst is None or found.fault is not EditFault.FORMAT else worst
                self._note(action, ROLLED_BACK, f"{found.fault}: {found.reason}", started)
                if failures > self._limits.repairs or found.fault is EditFault.MACHINE:
                    return self._ended(f"{worst.fault}: {worst.reason} (after {len(self._calls)} answers)")
                self._say(reply, self._request(found))
                pending = found
                continue
            self._note(action, REPAIRED if pending else KEPT, str(pending.fault) if pending else "", started)
            pending, edits = None, edits + 1
            if not self._more or edits >= self._limits.edits:
                return self._ended("")
            self._say(reply, GO_ON)

    # -- one answer ------------------------------------------------------------------------------------------------

    def _ask(self) -> Reply:
        """The next answer; a conversation that has grown too long starts again from the source as it stands."""
        try:
            reply = self._model.complete(tuple(self._messages), max_tokens=self._limits.max_tokens)
        except ModelFailed as failure:
            if failure.kind != "too long" or len(self._messages) <= len(self._opened.messages):
                raise
            self._calls.extend(failure.calls)
            last = self._messages[-1]
            self._opened = self._opening(self._source)
            self._messages = [*self._opened.messages, last]
            reply = self._model.complete(tuple(self._messages), max_tokens=self._limits.max_tokens)
        self._calls.extend(reply.calls)
        if reply.finish == "refused":
            raise ModelFailed("it declines to answer", "refused")
        return reply

    def _take(self, reply: Reply) -> None:
        """Apply and probe an answer. Raises _Fault; on return `_good` is the new source."""
        self._edit(self._understood(reply))
        if len(self._source.text.encode()) > MAX_SOURCE:
            self._source = self._good
            raise self._failing(EditFault.FORMAT, f"the source would be larger than {MAX_SOURCE} bytes; write less")
        reason = _syntax_fault(self._source.text)
        if reason:
            raise self._failing(EditFault.COMPILE, reason)
        if (why := self._failed.get(self._source.sha256)) is not None:
            raise _Fault(EditFault.FORMAT, f"this is the very source that failed before: {why}")
        if (candidate := self._known.get(self._source.sha256)) is not None and not self._more:
            raise self._failing(EditFault.FORMAT, f"this is candidate {candidate} again; make it differ")
        self._probes += 1
        evaluation = self._probe(self._source)
        fault = fault_of(evaluation)
        if fault is not None:
            raise self._failing(fault, evaluation.reason)
        self._good = self._source

    def _understood(self, reply: Reply) -> EditAnswer:
        if reply.finish == "length":
            raise _Fault(EditFault.FORMAT, "the answer was cut off at its limit; send a smaller change, in blocks")
        if reply.message.tool_calls and not reply.message.content.strip():
            raise _Fault(EditFault.FORMAT, "there are no tools here; write the edit into the answer")
        try:
            answer = parse(reply.message.content)
        except MalformedAnswer as error:
            raise _Fault(EditFault.FORMAT, str(error)) from error
        if answer.whole is not None and not self._opened.whole:
            raise _Fault(
                EditFault.FORMAT, "parts of the source were not shown, so a whole file would lose them; send blocks"
            )
        return answer

    def _edit(self, answer: EditAnswer) -> None:
        """Blocks that fit are in even when others are not: only those are asked for again.

        A repair may also be written against the last good source, as if the failed edit had never been.
        """
        edited = apply(answer, self._source.text)
        if edited.misfits and self._source != self._good:
            anew = apply(answer, self._good.text)
            edited = edited if anew.misfits else anew
        before, self._source = self._source, Source(edited.text, self._source.language)
        if edited.misfits:
            raise _Fault(EditFault.FORMAT, feedback(edited))
        self._more = answer.more
        if self._source == before == self._good:
            raise _Fault(EditFault.FORMAT, "the answer changes nothing")

    def _failing(self, fault: EditFault, reason: str) -> _Fault:
        self._failed[self._source.sha256] = f"{fault}: {reason}"[:DETAIL]
        return _Fault(fault, reason)

    # -- the conversation and its record -----------------------------------------------------------------------------

    def _request(self, found: _Fault) -> str:
        reason = without_middle(_broken(found.reason), self._limits.fault_tokens)
        stands = "The source is as it was before this edit."
        if self._source != self._good:
            stands = "Blocks now apply to the source with your edits in it."
        return f"Failed ({found.fault}).\n{reason}\n\n{ADVICE[found.fault]} {stands}"

    def _say(self, reply: Reply, text: str) -> None:
        answer = Message("assistant", quoted(reply.message.content, self._limits.max_tokens))
        self._messages += [answer, Message("user", text)]

    def _note(self, action: str, outcome: str, detail: str, started: float) -> None:
        self._steps.append(Step(action, outcome, detail[:DETAIL], time.monotonic() - started))

    def _ended(self, reason: str) -> Coded:
        steps, calls = tuple(self._steps), tuple(self._calls)
        if self._good.sha256 == self._start.sha256:
            raise OperatorFailed(reason or "the edits left the source as it was", steps=steps, calls=calls)
        return Coded(self._good.text, steps, calls, self._probes)


def quoted(text: str, max_tokens: int) -> str:
    """An answer as the conversation goes on with it: a model that heeds no limit is not quoted without one."""
    most = QUOTED * max_tokens
    return (text if tokens(text) <= most else without_middle(_broken(text), most)) or "(no text)"


def _broken(text: str) -> str:
    """Long lines in pieces, so that a message of one endless line can be cut too."""
    return "\n".join(line[at : at + 400] for line in text.split("\n") for at in range(0, max(len(line), 1), 400))


def _syntax_fault(text: str) -> str:
    """Why the text is no module that the judge could take, with the lines around; empty when it is one."""
    try:
        tree = parse_module(text)
    except SyntaxError as error:
        if error.lineno is None:
            return f"not valid Python: {error.msg}"
        first = max(error.lineno - 3, 1)
        around = enumerate(text.split("\n")[first - 1 : error.lineno + 2], start=first)
        shown = "\n".join(f"{number:4d} {line}" for number, line in around)
        return f"not valid Python: {error.msg} at line {error.lineno}\n{shown}"
    except (ValueError, RecursionError) as error:
        return f"not valid Python: {error}"
    if not any(getattr(node, "name", "") == "run" for node in tree.body):
        return "the module has no top-level `def run(...)`; keep it"
    return ""
