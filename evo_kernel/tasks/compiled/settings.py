"""Where the search for a kernel's knobs starts: at what torch.compile launches it with (Inductor's heuristics)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch

from evo_kernel.tasks.compiled.reading import Raw
from evo_kernel.tasks.compiled.stand_in import PROPERTIES, stand_in

BUSY = 1024  # elements of a block: a few a thread


def first_setting(raw: Raw) -> Mapping[str, int]:
    """Block sizes and NUM_WARPS, for the sizes that the kernel was traced with. Empty where Inductor has no heuristic.

    Of several settings that torch.compile would time, the first; where a reduction's loads run along x, the one with
    most columns, and of these most rows; where rows are held whole, enough of them for `BUSY` elements that still leave
    a block for each SM. Sizes count as constants, as they are in our kernels.
    """
    from torch._inductor.runtime import hints, triton_heuristics

    facts = {**raw.facts, "max_autotune": False, "max_autotune_pointwise": False}
    given: dict[str, Any] = {"size_hints": dict(raw.size_hints), "inductor_meta": facts}
    if raw.kind == "pointwise":
        given["tile_hint"] = hints.TileHint[raw.tiles]
    elif raw.kind in ("reduction", "persistent_reduction"):
        given["reduction_hint"] = hints.ReductionHint[raw.hint]
    else:
        return {}
    with stand_in(), mock.patch.object(triton_heuristics, "cached_autotune", lambda sizes, configs, **rest: configs):
        device = hints.DeviceProperties.create(torch.device("cuda", 0))
        configs = getattr(triton_heuristics, raw.kind)(**given, triton_meta={"device": device, "signature": {}})
    first = max(configs, key=_columns) if raw.hint == "DEFAULT" and _runs_along_x(raw) else configs[0]
    if raw.kind == "persistent_reduction" and raw.size_hints.keys() == {"x", "r0_"}:
        blocks = PROPERTIES.multi_processor_count
        spread = [one for one in configs if raw.size_hints["x"] >= blocks * one.kwargs["XBLOCK"]] or configs[:1]
        first = next((one for one in spread if one.kwargs["XBLOCK"] * raw.size_hints["r0_"] >= BUSY), spread[-1])
    return {**first.kwargs, "NUM_WARPS": first.num_warps}


def _columns(config: Any) -> tuple[int, int]:
    return config.kwargs["XBLOCK"], config.kwargs["R0_BLOCK"]


def _runs_along_x(raw: Raw) -> bool:
    """Whether neighbours in memory are neighbours along x, by what Inductor counts of a reduction's accesses."""
    scores = raw.facts.get("tiling_scores") or {}
    return (
        raw.kind == "reduction" and raw.size_hints.keys() == {"x", "r0_"} and scores.get("x", 0) > scores.get("r0_", 0)
    )
