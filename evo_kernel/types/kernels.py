"""Kernels: source text, knob settings, and features of launch plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property


def content_hash(value: object) -> str:
    """sha256 of the canonical JSON of `value` (dataclasses welcome), hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=asdict)  # type: ignore[arg-type]
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Source:
    """The text of a kernel: one Python module with `run(*inputs)`. Raises SyntaxError for what UTF-8 cannot spell."""

    text: str
    language: str = "triton"

    def __post_init__(self) -> None:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            line = self.text.count("\n", 0, error.start) + 1
            said = "half of a surrogate pair (\\ud800 to \\udfff) is no text: write the character itself"
            raise SyntaxError(said, ("the source", line, 0, "")) from None

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.language}\0{self.text}".encode()).hexdigest()


Knobs = tuple[tuple[str, int], ...]
"""One setting of the knobs: sorted (name, value) pairs. A name is a module constant (`BLOCK_M`), or
`kernel.config` (an index into its autotune configurations), or `kernel.num_warps` / `kernel.num_stages`."""


@dataclass(frozen=True)
class KernelFeatures:
    """What one launch of a plan is made of: evidence for policies, archive cells and witnesses."""

    name: str
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_core: str  # "none" | "mma" | "wgmma"
    data_path: str  # "load" | "cp.async" | "tma"
    schedule: str  # "plain" | "pipelined" | "persistent" | "warp-specialised"
    instructions: Mapping[str, int]  # static counts by class: "ld.global", "st.global", "mufu", "fma", "hgmma", ...
    share: float = 0.0  # of the plan's time, modeled or measured; the dominant kernel has the largest


@dataclass(frozen=True)
class PlanFeatures:
    """What a plan is made of; `kernels` in launch order."""

    launches: int
    aten_nodes: int
    kernels: tuple[KernelFeatures, ...]
    scratch_bytes: int = 0  # of intermediate buffers: fusion makes it fall

    @property
    def dominant(self) -> KernelFeatures | None:
        """The kernel with the largest share of the plan's time."""
        return max(self.kernels, key=lambda kernel: kernel.share, default=None)

    @property
    def cell(self) -> tuple[str, str, str, int]:
        """Archive cell: tensor-core path, data path, schedule of the dominant kernel; launches 1, 2 or 3+."""
        kernel = self.dominant
        if kernel is None:
            return ("none", "load", "plain", min(self.launches, 3))
        return (kernel.tensor_core, kernel.data_path, kernel.schedule, min(max(self.launches, 1), 3))
