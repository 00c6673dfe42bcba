"""Schema of the recorder child's answer, which is untrusted: every field has a type and a bound.

Plans are not parsed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_CONFIGS = 1000


class _AnswerModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FaultAnswer(_AnswerModel):
    """Why there is no plan. The child cannot report success or a failure of the machine."""

    status: Literal["rejected", "build_error", "runtime_error", "wrong", "timeout"]
    reason: Annotated[str, Field(max_length=4000)]


class CaseAnswer(_AnswerModel):
    """One case with one knob setting: `plan` or `fault`."""

    case: Annotated[str, Field(max_length=400)]
    setting: Annotated[int, Field(ge=0, lt=1 << 16)]
    plan: Any = None
    fault: FaultAnswer | None = None


class RecorderAnswer(_AnswerModel):
    """The whole answer. `needs`: kernels whose resources host code reads; `configs`: autotune configurations."""

    records: Annotated[list[CaseAnswer], Field(max_length=1 << 16)]
    needs: Annotated[list[Any], Field(max_length=1 << 10)] = []
    configs: dict[Annotated[str, Field(max_length=400)], Annotated[int, Field(ge=0, lt=1 << 31)]] = {}
