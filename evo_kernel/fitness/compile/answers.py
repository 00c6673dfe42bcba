"""Schema of the compiler child's answer, which is untrusted: every field has a type and a bound."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from evo_kernel.fitness.plan.launch_plan import MAX_CODE

Count = Annotated[int, Field(ge=0, lt=1 << 31)]


class _AnswerModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MetadataAnswer(_AnswerModel):
    """The compiler's metadata. `Binary` has narrower bounds and validates `tensordesc_meta`."""

    name: Annotated[str, Field(min_length=1, max_length=1000)]
    shared: Count
    num_warps: Count
    num_ctas: Count
    global_scratch_size: Count | None = None
    global_scratch_align: Count | None = None
    profile_scratch_size: Count | None = None
    profile_scratch_align: Count | None = None
    launch_cooperative_grid: bool | None = None
    launch_pdl: bool | None = None
    tensordesc_meta: Any = None


class KernelAnswer(_AnswerModel):
    """One kernel: its code (base64) with metadata, or a fault."""

    fault: str | None = None
    cubin: str | None = None
    metadata: MetadataAnswer | None = None
    ir: Annotated[str, Field(max_length=MAX_CODE)] = ""  # the compiled IR as MLIR prints it; empty for CUDA C++


class Compiled(_AnswerModel):
    """The whole answer, in the order of the request; a child may omit the last kernels."""

    answers: Annotated[list[KernelAnswer], Field(min_length=1, max_length=1 << 12)]
