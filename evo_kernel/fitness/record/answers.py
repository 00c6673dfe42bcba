"""What the recorder's child answers: untrusted, so every field has a type and a bound. Plans come later."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_CONFIGS = 1000


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ToldFault(_Told):
    """Why there is no plan. A child cannot say that it passed, nor that the machine failed."""

    status: Literal["rejected", "build_error", "runtime_error", "wrong", "timeout"]
    reason: Annotated[str, Field(max_length=4000)]


class ToldRecord(_Told):
    """One case under one setting of the knobs: `plan` or `fault`."""

    case: Annotated[str, Field(max_length=400)]
    setting: Annotated[int, Field(ge=0, lt=1 << 16)]
    plan: Any = None
    fault: ToldFault | None = None


class RecorderAnswer(_Told):
    """The whole answer. `needs`: kernels whose resources host code asks for."""

    records: Annotated[list[ToldRecord], Field(max_length=1 << 16)]
    needs: Annotated[list[Any], Field(max_length=1 << 10)] = []
    configs: dict[Annotated[str, Field(max_length=400)], Annotated[int, Field(ge=0, lt=1 << 31)]] = {}
