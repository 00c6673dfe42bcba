"""What the compiler's child answers: untrusted, so every field has a type and a bound."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from evo_kernel.fitness.plan.launch_plan import MAX_CODE

Count = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ToldMetadata(_Told):
    """What the compiler says of its code. `Binary` has narrower bounds, and checks `tensordesc_meta`."""

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


class ToldKernel(_Told):
    """One kernel: its code (base64) with what is said of it, or a fault."""

    fault: str | None = None
    cubin: str | None = None
    metadata: ToldMetadata | None = None
    ir: Annotated[str, Field(max_length=MAX_CODE)] = ""  # as MLIR prints what it compiled; of CUDA C++ none


class Compiled(_Told):
    """The whole answer, in the order of the request; a child may leave out the last ones."""

    answers: Annotated[list[ToldKernel], Field(min_length=1, max_length=1 << 12)]
