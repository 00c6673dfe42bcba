"""A trained coder as a language model: `--model scratch:PATH`, like any other model's name.

It reads the strategy and the source out of the conversation that `micro.llm_coder` opens, and answers with blocks. It
knows nothing but edits: of choices that a policy asks for it takes the first, and repairs are fresh answers.
"""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import torch

from evo_kernel.types import Call, Strategy
from operators.learning.coder.answers import answer_text, kernel_of
from operators.learning.coder.scratch.network import sample
from operators.learning.coder.scratch.training import load_coder, request
from operators.llm.base import Message, Model, ModelFailed, ModelRequest, Reply
from operators.llm.models import smallest
from operators.llm.transcript import message_data, pack, request_data
from operators.micro.edit_blocks import GIVE_UP

_SOURCE = re.compile(r"^#+ Source[^\n]*\n(?:[^`\n]*\n)*?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_STRATEGY = re.compile(r"^\*\*([a-z0-9-]+)\*\* \(([a-z-]+)\): .*(?:\nWhere: (.*)\.)?((?:\n\w+: .*)*)", re.MULTILINE)
MOST, TEMPERATURE = 512, 0.8  # tokens of an answer, and how it is drawn


class ScratchModel(Model):
    """Thread-safe: answers are made one at a time, on the device that the coder lies on."""

    def __init__(self, path: Path, name: str) -> None:
        """On a GPU where there is one. Raises UserError."""
        self.name, self._lock = name, threading.Lock()
        device = "cuda" if torch.version.cuda is not None and torch.cuda.is_available() else "cpu"
        self._coder, _about = load_coder(path, device)
        self._generator = torch.Generator(self._coder.device).manual_seed(0)

    def answer(self, request: ModelRequest) -> Reply:
        began = time.monotonic()
        prompt, said, tokens = 0, "", 0
        if request.schema is not None:
            said = json.dumps(smallest(request.schema))
        else:
            strategy, source = asked("\n".join(one.content for one in request.messages if one.role == "user"))
            if strategy is None or not source:
                raise ModelFailed("this coder carries strategies out on a source, and was given none", "invalid")
            prompt, said, tokens = self._edit(strategy, source, request.max_tokens or MOST)
        message = Message("assistant", said)
        call = Call(
            model=self.name, tokens_in=prompt, tokens_out=tokens, dollars=0.0, wall_s=time.monotonic() - began,
            messages=pack(request_data(request), message_data(message)),
        )  # fmt: skip
        return Reply(message, call)

    def _edit(self, strategy: Strategy, source: str, most: int) -> tuple[int, str, int]:
        """Tokens asked, the answer with blocks, tokens answered."""
        made = request(self._coder.vocabulary, strategy, source)
        if len(made.prompt) >= self._coder.network.shape.context:
            raise ModelFailed(f"a source of {len(made.prompt)} tokens is too long for this coder", "too long")
        with self._lock:
            network, prompts = self._coder.network, [made.prompt]
            (answer,) = sample(network, prompts, TEMPERATURE, min(most, MOST), self._generator)
        written = kernel_of(made.read(self._coder.vocabulary, answer), source)
        if written.text is None:
            return len(made.prompt), f"{GIVE_UP} {written.fault}", len(answer)
        return len(made.prompt), answer_text(source, written.text), len(answer)


def asked(text: str) -> tuple[Strategy | None, str]:
    """The last strategy and the last source that a conversation shows."""
    sources, strategies = _SOURCE.findall(text), list(_STRATEGY.finditer(text))
    if not strategies:
        return None, sources[-1] if sources else ""
    name, family, region, rest = strategies[-1].groups()
    parameters = tuple(
        (key, int(value) if value.lstrip("-").isdecimal() else value)
        for key, _, value in (line.partition(": ") for line in (rest or "").strip().split("\n") if line)
    )
    return Strategy(name, family, region or "", parameters), sources[-1] if sources else ""
