"""Where the search for a kernel's knobs starts: at what torch.compile launches it with (Inductor's heuristics)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch

from evo_kernel.tasks.compiled.reading import Raw
from evo_kernel.tasks.compiled.stand_in import PROPERTIES, stand_in

BUSY = 1024  # elements of a block: a few a thread
SECTOR = 8  # elements of float32
BESIDE = 0.125  # of the accesses: fewer may be without order


def first_setting(raw: Raw) -> Mapping[str, int]:
    """Block sizes and NUM_WARPS, for the sizes that the kernel was traced with. Empty where Inductor has no heuristic.

    Of several settings that torch.compile would time, the first; where a reduction's accesses run along x, the one with
    most columns, and of these most rows, and where they run along both, one whose blocks have a sector of each; where
    rows are held whole, enough of them for `BUSY` elements that still leave a block for each SM. Sizes count as
    constants, as they are in our kernels.
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

    def spread(config: Any) -> bool:
        return raw.size_hints["x"] >= PROPERTIES.multi_processor_count * config.kwargs["XBLOCK"]

    with stand_in(), mock.patch.object(triton_heuristics, "cached_autotune", lambda sizes, configs, **rest: configs):
        device = hints.DeviceProperties.create(torch.device("cuda", 0))
        configs = getattr(triton_heuristics, raw.kind)(**given, triton_meta={"device": device, "signature": {}})
    first = configs[0]
    if raw.kind == "reduction" and raw.hint == "DEFAULT" and (along := _accesses(raw)):
        least, most = sorted(along.values())
        wide = [one for one in configs if min(_columns(one)) >= SECTOR and spread(one)]
        if wide and least >= BESIDE * most:
            first = max(wide, key=_columns)
        elif along["x"] > along["r0_"]:
            first = max(configs, key=_columns)
    if raw.kind == "persistent_reduction" and raw.size_hints.keys() == {"x", "r0_"}:
        fitting = [one for one in configs if spread(one)] or configs[:1]
        first = next((one for one in fitting if one.kwargs["XBLOCK"] * raw.size_hints["r0_"] >= BUSY), fitting[-1])
    return {**first.kwargs, "NUM_WARPS": first.num_warps}


def _columns(config: Any) -> tuple[int, int]:
    return config.kwargs["XBLOCK"], config.kwargs["R0_BLOCK"]


def _accesses(raw: Raw) -> Mapping[str, int]:
    """A reduction's accesses that run along x and along its rows, as Inductor weighs them; empty where it has more."""
    scores = raw.facts.get("tiling_scores") or {}
    return {name: scores.get(name, 0) for name in ("x", "r0_")} if raw.size_hints.keys() == {"x", "r0_"} else {}
