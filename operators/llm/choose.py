"""From what a user names to a model: `provider/name`, `scripted`, `scripted:FILE`, `replay:FILE`, `scratch:FILE` (a
coder that `train coder` made), or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evo_kernel.errors import UserError
from operators.llm.base import Model
from operators.llm.endpoint import Endpoint
from operators.llm.ensemble import Ensemble
from operators.llm.litellm_model import LiteLLMModel
from operators.llm.litellm_request import LiteLLMWire
from operators.llm.recording import Replayer
from operators.llm.scripted import ScriptedModel


def open_model(names: Sequence[str], rng: np.random.Generator, **settings: Any) -> Model:
    """The model of that name, or an ensemble of several. `settings`: of LiteLLMModel, the same for all.

    Models at one base URL share its circuit breaker, and all share one event loop. A recorder goes around the result.
    """
    if not names:
        raise UserError("No model was named. Name one: provider/name as litellm spells it, or `scripted`.")
    wire = LiteLLMWire()
    if settings.get("base_url") and not settings.get("endpoint"):
        settings["endpoint"] = Endpoint(settings["base_url"])
    members = [_one(name, wire, settings) for name in dict.fromkeys(names)]
    return members[0] if len(members) == 1 else Ensemble(members, rng)


def _one(name: str, wire: LiteLLMWire, settings: dict[str, Any]) -> Model:
    kind, _, path = name.partition(":")
    if kind == "replay":
        return Replayer(Path(path))
    if kind == "scratch":
        from operators.learning.coder.scratch.coder import ScratchModel  # torch, which no other model needs here

        return ScratchModel.from_file(Path(path), name)
    if kind == "scripted":
        return ScriptedModel.from_file(Path(path), name) if path else ScriptedModel()
    return LiteLLMModel(name, wire=wire, **settings)
