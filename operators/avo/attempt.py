"""One attempt: a conversation over the workbench, from a brief to a commit or a limit.

Every turn is in the store before the next one is asked for: the opening, each answer of the model, the result of each
tool call, each summary. An attempt that finds turns of its own in the store takes them for its past: the same prompt,
the same files, the same budget spent; the first thing that is missing is done next.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evo_kernel.types import Call, Step
from evo_kernel.types.protocols import TurnStore
from operators.avo.conversation import MOST_CALLS, AgentConversation, ContextLimits, fitted
from operators.avo.memory import AgentEvaluation, AgentMemory, SupervisorLimits
from operators.llm.base import Message, Model, ModelFailed, Reply, Tool, ToolCall
from operators.llm.transcript import message_data, message_from
from operators.workbench.judge_tools import KERNEL, Allowed
from operators.workbench.tool import Submission, ToolResult, WorkTool, schema
from operators.workbench.toolset import ToolOutcome, Workbench

OPENING, ANSWER, RESULT, SUMMARY, TROUBLE = "opening", "answer", "result", "summary", "trouble"
TRIED = 48  # evaluations of this attempt that are remembered, the latest
LONGER = 2  # times that a prompt which is too long for the model is made shorter
NUDGE = (
    "You called no tool. Go on with the tools: look, change {kernel}, probe, evaluate, submit. When you have nothing "
    "left to try, call give_up and say why."
)
CUT_OFF = "Your answer was cut off at its limit. Write shorter ones: one file or a few edits at a time."


@dataclass(frozen=True)
class AttemptLimits:
    """What ends an attempt without a commit. None: no limit. All sessions of an attempt count together."""

    turns: int = 120  # answers of the model
    seconds: float | None = 3 * 3600.0  # of work: answers and tools, not the time between two sessions
    idle: int = 3  # answers in a row that call no tool
    calls_a_turn: int = 12  # tool calls of one answer that are carried out; of more it is told
    max_tokens: int = 8192  # of one answer
    down_waits: int = 10  # times that a model which is down is waited for, before the attempt is set aside
    down_wait_s: float = 30.0


@dataclass(frozen=True)
class AvoSettings:
    limits: AttemptLimits = field(default_factory=AttemptLimits)
    allowed: Allowed = field(default_factory=Allowed)
    context: ContextLimits = field(default_factory=ContextLimits)
    supervision: SupervisorLimits = field(default_factory=SupervisorLimits)


class Paused(Exception):
    """The attempt stands still and may be gone on with in a later session."""


class _Unanswered(Exception):
    """The model will not answer this conversation. The message is a sentence."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended. `calls`: of this session."""

    why: str
    submission: Submission | None
    gain: float | None
    tried: tuple[AgentEvaluation, ...]
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]


def give_up() -> WorkTool:
    """The tool by which an agent ends its attempt."""

    def run(arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult("the attempt is over", {"gave_up": arguments["reason"]})

    return WorkTool(
        "give_up", "End this attempt without a commit, when you have nothing left to try.",
        schema(("reason",), reason={"type": "string", "minLength": 3, "maxLength": 300}), run,
    )  # fmt: skip


class AvoAttempt:
    """One attempt, one thread, `run` once. `stopping`: whether the run is ending, asked before everything slow."""

    def __init__(
        self,
        model: Model,
        workbench: Workbench,
        store: TurnStore,
        settings: AvoSettings,
        memory: AgentMemory,
        stopping: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model, self._workbench, self._store = model, workbench, store
        self._settings, self._memory = settings, memory
        self._stopping, self._sleep = stopping, sleep
        self._number = workbench.brief.attempt
        tools = workbench.tools.values()
        self._tools = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in tools)
        self._talk = AgentConversation((), settings.context)
        self._calls: list[Call] = []  # of this session
        # Over all sessions of the attempt: answers, seconds of work, answers in a row without a tool call.
        self._answers, self._seconds, self._idle = 0, 0.0, 0
        self._pending: list[ToolCall] = []  # of the latest answer, not carried out yet
        self._done = 0  # calls of the latest answer that were carried out
        self._gave_up = ""
        self._gain: float | None = None
        self._tried: OrderedDict[str, AgentEvaluation] = OrderedDict()  # by evaluation

    # ---- the attempt as a whole -----------------------------------------------------------------------------------

    def open(self, messages: Sequence[Message], calls: Sequence[Call] = ()) -> None:
        """Begin anew. `calls`: what preparing the opening has cost."""
        said = fitted(messages, self._settings.context)
        files = {KERNEL: self._workbench.workspace.read(KERNEL)}
        self._keep(OPENING, {"messages": [message_data(one) for one in said], "files": files}, calls)
        self._talk = AgentConversation(said, self._settings.context)

    def resume(self) -> bool:
        """Stand where the stored turns end; False where there are none."""
        found = False
        for kind, data in self._store.turns(self._number):
            found = True
            self._replay(kind, data)
        return found

    def run(self) -> AttemptEnd:
        """Until a commit or a limit. Raises Paused where the attempt is to be gone on with later."""
        while True:
            if self._pending and not self._over():
                self._carry_out(self._pending[0])
                continue
            if why := self._over() or self._limit():
                return self._ended(why)
            if count := self._talk.due():
                self._sum_up(count)
            try:
                reply = self._ask()
            except _Unanswered as end:
                return self._ended(str(end))
            message = replace(reply.message, tool_calls=reply.message.tool_calls[:MOST_CALLS])
            wall_s = sum(call.wall_s for call in reply.calls)
            data = {"message": message_data(message), "finish": reply.finish, "wall_s": wall_s}
            self._keep(ANSWER, data, reply.calls)
            self._took(message, reply.finish, wall_s)

    @property
    def cost(self) -> tuple[Call, ...]:
        """The calls of this session so far."""
        return tuple(self._calls)

    @property
    def begun(self) -> bool:
        """Whether the model has answered, in any session."""
        return self._answers > 0

    # ---- turns ----------------------------------------------------------------------------------------------------

    def _carry_out(self, call: ToolCall) -> None:
        self._check_stop()
        if self._done >= self._settings.limits.calls_a_turn:
            most = self._settings.limits.calls_a_turn
            outcome = ToolOutcome(f"Failed: one answer may make {most} calls; make this one in the next.", failed=True)
        else:
            outcome = self._workbench.call(call.name, call.arguments)
            if warning := self._warning(outcome):
                outcome = replace(outcome, text=f"{outcome.text}\nNote: {warning}")
        data = {"id": call.id, "outcome": outcome.as_data()}
        self._keep(RESULT, data, (), outcome.charged, outcome.gpu_s)
        self._brought(call, outcome)

    def _sum_up(self, count: int) -> None:
        summary = self._talk.by_rule(count)
        self._keep(SUMMARY, {"count": count, "text": summary})
        self._talk.sum_up(count, summary)

    def _ask(self) -> Reply:
        """The next answer. Raises Paused, and _Unanswered where there will be none."""
        waits = longer = 0
        while True:
            self._check_stop()
            try:
                reply = self._model.complete(
                    self._talk.messages(), tools=self._tools, max_tokens=self._settings.limits.max_tokens
                )
            except ModelFailed as failure:
                self._keep(TROUBLE, {"kind": failure.kind, "reason": failure.reason[:500]}, failure.calls)
                if failure.kind == "down" and waits < self._settings.limits.down_waits:
                    waits += 1
                    self._wait(self._settings.limits.down_wait_s)
                elif failure.kind == "too long" and longer < LONGER and (half := self._talk.count // 2):
                    longer += 1
                    self._sum_up(half)
                elif failure.kind in ("down", "budget", "stopped"):
                    raise Paused(failure.reason) from None
                else:
                    raise _Unanswered(f"the model does not answer ({failure.kind}): {failure.reason[:300]}") from None
                continue
            if reply.finish == "refused":
                self._keep(TROUBLE, {"kind": "refused", "reason": reply.message.content[:500]}, reply.calls)
                raise _Unanswered(f"the model declines: {reply.message.content[:300]}")
            return reply

    # ---- what a turn changes, new or replayed ---------------------------------------------------------------------

    def _replay(self, kind: str, data: Mapping[str, Any]) -> None:
        match kind:
            case "opening":
                self._talk = AgentConversation([message_from(one) for one in data["messages"]], self._settings.context)
                self._workbench.workspace.restore(data["files"])
            case "answer":
                self._took(message_from(data["message"]), data["finish"], data["wall_s"])
            case "result":
                call = next(one for one in self._pending if one.id == data["id"])
                outcome = ToolOutcome.from_data(data["outcome"])
                self._workbench.restore(outcome)
                self._brought(call, outcome)
            case "summary":
                self._talk.sum_up(data["count"], data["text"])

    def _took(self, message: Message, finish: str, wall_s: float) -> None:
        self._talk.answer(message)
        if not message.tool_calls:  # with calls, their results come next: no word of ours may stand between
            self._talk.say(CUT_OFF if finish == "length" else NUDGE.format(kernel=KERNEL))
        self._pending = list(message.tool_calls)
        self._done = 0
        self._answers += 1
        self._seconds += wall_s
        self._idle = 0 if message.tool_calls else self._idle + 1

    def _brought(self, call: ToolCall, outcome: ToolOutcome) -> None:
        self._pending.remove(call)
        self._done += 1
        self._seconds += outcome.wall_s
        self._talk.result(call, outcome.text, outcome.failed)
        facts = outcome.facts
        self._gave_up = facts.get("gave_up", self._gave_up)
        if facts.get("purpose") == "score" and facts.get("evaluation"):
            refused = facts.get("refused", "")
            told = (facts["status"], facts["fault"], facts["plan"], facts["score"])
            tried = AgentEvaluation(facts["idea"], *told, refused, facts.get("gain"))
            self._tried.pop(facts["evaluation"], None)
            self._tried[facts["evaluation"]] = tried
            if len(self._tried) > TRIED:
                self._tried.popitem(last=False)
        if outcome.submission is not None:
            self._gain = facts.get("gain")

    # ---- limits ---------------------------------------------------------------------------------------------------

    def _over(self) -> str:
        """Why nothing more is to be done; empty while there is."""
        if self._workbench.submission is not None:
            return "committed"
        return f"gave up: {self._gave_up}" if self._gave_up else ""

    def _limit(self) -> str:
        limits = self._settings.limits
        if self._answers >= limits.turns:
            return f"the limit of {limits.turns} answers"
        if self._idle >= limits.idle:
            return f"{self._idle} answers in a row called no tool"
        if limits.seconds is not None and self._seconds >= limits.seconds:
            return f"the limit of {limits.seconds:g} seconds"
        return ""

    def _check_stop(self) -> None:
        if self._stopping():
            raise Paused("the run is ending")

    def _wait(self, seconds: float) -> None:
        """In slices, so that a run which ends is not waited for."""
        while seconds > 0:
            self._check_stop()
            self._sleep(min(seconds, 1.0))
            seconds -= 1.0

    # ---- within ---------------------------------------------------------------------------------------------------

    def _keep(
        self,
        kind: str,
        data: Mapping[str, Any],
        calls: Sequence[Call] = (),
        charged: Mapping[str, int] | None = None,
        gpu_s: float = 0.0,
    ) -> None:
        """Store a turn. Its calls' messages are let go of where the store has them."""
        self._store.append(self._number, kind, data, calls, charged, gpu_s)
        self._calls += [replace(call, messages="") for call in calls] if self._store.keeps_calls else calls

    def _warning(self, outcome: ToolOutcome) -> str:
        """Where what was just evaluated is known under another name."""
        facts = outcome.facts
        if facts.get("purpose") != "score" or outcome.submission is not None:
            return ""
        plan = facts.get("plan", "")
        for name, one in self._tried.items():
            if plan and one.plan == plan and name != facts["evaluation"]:
                return f"by its launch plans this is the same kernel as {name} ({one.idea})"
        return self._memory.warning(facts["idea"], plan)

    def _ended(self, why: str) -> AttemptEnd:
        tried = tuple(self._tried.values())
        steps = tuple(Step(one.idea, "rolled back" if one.failed else "kept", _told(one)) for one in tried)
        return AttemptEnd(why, self._workbench.submission, self._gain, tried, steps, self.cost)


def _told(one: AgentEvaluation) -> str:
    score = f", score {one.score:.3f}" if one.score is not None else ""
    refused = f", refused: {one.refused}" if one.refused else ""
    return f"{one.idea}: {one.status} {one.fault}".rstrip() + score + refused
