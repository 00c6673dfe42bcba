"""A model that says what it is told to, for tests of whoever asks one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from evo_kernel.types import Call, Evaluation, Purpose, Source, Status
from operators.llm.base import Message, Model, ModelFailed, Reply
from tests.operators.support_search import ENVIRONMENT, evaluation, kernel, plan

Answer = str | Reply | ModelFailed | Callable[[Sequence[Message]], str]


class FakeModel(Model):
    """Gives its answers in order, the last one for ever; keeps what it was asked."""

    name = "fake/one"

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked, self.schemas = list(answers), [], []

    def answer(self, request):
        messages = request.messages
        self.asked.append(messages)
        self.schemas.append(request.schema)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(messages)
        if isinstance(answer, ModelFailed):
            raise answer
        return answer if isinstance(answer, Reply) else reply(answer)


def reply(text: str, finish: str = "stop", tool_calls=()) -> Reply:
    return Reply(Message("assistant", text, tuple(tool_calls)), Call("fake/one", 100, 20, dollars=0.01), finish)


def choice(number: int, confidence: float = 0.7, **more) -> str:
    return json.dumps({"why": "because", "choice": number, "confidence": confidence} | more)


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


class Judged:
    """A probe: fails what a predicate turns down, with a status and a reason."""

    def __init__(self, refuse: Callable[[str], tuple[Status, str] | None] = lambda text: None) -> None:
        self.refuse, self.seen = refuse, []

    def __call__(self, source: Source) -> Evaluation:
        self.seen.append(source)
        verdict = self.refuse(source.text)
        if verdict is None:
            return evaluation(plan(kernel()))
        return Evaluation("s", "t", Purpose.PROBE, ENVIRONMENT, *verdict)
