"""From a name to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operators.llm.base import Model
from operators.llm.litellm_model import LiteLLMModel
from operators.llm.models import ScriptedModel


def open_model(name: str, **settings: Any) -> Model:
    """`settings`: of LiteLLMModel. Raises UserError."""
    kind, _, path = name.partition(":")
    if kind == "scratch":
        from operators.learning.coder.scratch.coder import ScratchModel  # torch, which no other model needs here

        return ScratchModel(Path(path), name)
    if name == "scripted":
        return ScriptedModel()
    return LiteLLMModel(name, **settings)
