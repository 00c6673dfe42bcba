"""A coder's training from nothing, with its log and its end, and where networks are trained."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evo_kernel.app.signals import ending_twice
from evo_kernel.app.train.judging import BenchSettings, PlanRewardJudge
from evo_kernel.errors import UserError
from operators.learning.coder.examples import read
from operators.learning.coder.scratch.run import Result, RunSettings, run


def train_from_nothing(
    examples: Path, out: Path, settings: RunSettings, judging: BenchSettings, device: str, tell: Callable[..., None]
) -> tuple[Result, int]:
    """What came of it, and how many kernels were judged. Raises UserError.

    `tell` gets each word of progress, which is a line of progress.jsonl too. The first SIGINT or SIGTERM finishes the
    step under way, the second interrupts it.
    """
    stop, taught = threading.Event(), read(examples)
    out.mkdir(parents=True, exist_ok=True)

    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    with (
        (out / "progress.jsonl").open("a", encoding="utf-8") as log,
        ending_twice(lambda name: stop.set(), interrupt),
        PlanRewardJudge(judging) as bench,
    ):

        def told(progress: Mapping[str, Any]) -> None:
            log.write(json.dumps(dict(progress)) + "\n")
            log.flush()
            tell(progress)

        needed = bench if settings.grpo.steps or settings.asked else None
        return run(taught, out, settings, needed, device, told, stop.is_set), bench.judged_count


def chosen_device(wanted: str) -> str:
    """`cuda` or `cpu`; auto: a GPU if there is one. Raises UserError."""
    import torch

    present = torch.version.cuda is not None and torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise UserError("--device cuda: torch sees no CUDA GPU here; train with --device cpu, or say `auto`")
    return "cuda" if present and wanted != "cpu" else "cpu"
