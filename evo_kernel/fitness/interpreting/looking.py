"""A look at a plan of real size where there is no GPU: some of its programs, executed on real inputs.

Small plans are executed as a whole. Of others a few programs of every launch run, at the same relative places, since
programs at one place of several launches mostly belong together; once with each kind of rubbish in scratch and outputs.
An element that comes out the same every time was written, and from nothing that was left out: it can be held against
the reference. One that differs is unknown, and nothing is said about it.

Not covered: large plans with atomics (programs that were left out would have added something) or torch operations.
"""

from __future__ import annotations

import base64
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo_kernel.fitness.interpreting.emulation import Builder
from evo_kernel.fitness.interpreting.interpret import Machine, table_of
from evo_kernel.fitness.plan import Aten, Constant, Copy, Fill, Launch, Plan

RUBBISH = (0xFB, 0x7B, 0xFF)
"""Bytes of scratch in the runs: very negative and very large numbers in every dtype, so that a maximum, a minimum or a
sum that they enter differs; and NaN (of integers, -1), since products of the others may be one infinity, and a softmax
of equal numbers is the same whatever they are."""
WHOLE_BYTES, WHOLE_PROGRAMS = 8 << 20, 1024
"""Plans up to this size are executed as a whole."""
PROGRAMS, SECONDS = 16, 0.4  # of each launch otherwise, in each run
PLACES = 1 << 18  # elements that are told of each output, at most
EVEN = 0.05  # relative spread of what programs write, below which they write the same


class WatchingBuilder(Builder):
    """Counts the elements that a program stores, by buffer."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.stored: defaultdict[int, int] = defaultdict(int)

    def access(self, ptrs: Any, mask: np.ndarray | None, what: str) -> None:
        super().access(ptrs, mask, what)
        count = ptrs.data.size if mask is None else int(np.broadcast_to(mask, ptrs.data.shape).sum())
        if what == "a store" and count:
            used = ptrs.data if mask is None else ptrs.data[np.broadcast_to(mask, ptrs.data.shape)]
            self.stored[self.memory.buffer_of(int(used.flat[0]))] += count


def look(plan: Plan, inputs: Mapping[int, Path], folder: Path, seed: int) -> dict[str, Any]:
    """{"outputs": [{"places", "values", "unknown"}], "whole", "changed", "written"}, or {"skipped": why}.

    Runs in a clean process with TRITON_INTERPRET=1. `inputs`: files with the bytes of input buffers. `places` are flat
    positions (int64) and `values` bytes, both base64; `written` an estimate of each output's elements that the whole
    grid stores, where one launch does and its programs store alike. Raises KernelFault, NotInterpretable.
    """
    programs = sum(math.prod(launch.grid) for launch in plan.launches)
    whole = sum(b.bytes for b in plan.buffers) <= WHOLE_BYTES and programs <= WHOLE_PROGRAMS
    if not whole and any("atomic" in kernel.code or "_reduce" in kernel.code for kernel in plan.kernels):
        return {"skipped": "programs that were left out would have added to what others wrote"}
    if not whole and any(isinstance(node, Aten) for node in plan.nodes):
        return {"skipped": "torch operations of this size are not executed"}
    if whole and any(isinstance(node, Aten) or "atomic" in k.code for node in plan.nodes for k in plan.kernels):
        return {"skipped": "its parts may be added in any order"}
    return _Look(plan, inputs, folder, seed, whole).result()


class _Look:
    def __init__(self, plan: Plan, inputs: Mapping[int, Path], folder: Path, seed: int, whole: bool) -> None:
        self._plan, self._inputs, self._whole = plan, inputs, whole
        self._machine = Machine(plan, folder, WatchingBuilder)
        self._places = np.random.default_rng(seed).random(PROGRAMS)
        self._stored: dict[int, list[dict[int, int]]] = {}  # by node: what each program stored
        for index, path in inputs.items():
            self._machine.memory.of(index).copy_(_bytes(path))

    def result(self) -> dict[str, Any]:
        runs = [self._run(rubbish) for rubbish in RUBBISH]
        changed = [
            index for index, path in self._inputs.items()
            if not torch.equal(self._machine.memory.of(index), _bytes(path))
        ]  # fmt: skip
        # NaN may come of rubbish in every run (infinities that cancel), where launches read what others write.
        several = sum(isinstance(node, Launch) for node in self._plan.nodes) > 1
        outputs = [_agreed(output, not self._whole and several) for output in zip(*runs, strict=True)]
        return {"outputs": outputs, "whole": self._whole, "changed": changed, "written": self._written()}

    def _run(self, rubbish: int) -> list[torch.Tensor]:
        for index, buffer in enumerate(self._plan.buffers):
            if buffer.kind == "scratch":
                self._machine.memory.of(index).fill_(rubbish)
        with np.errstate(all="ignore"):
            for number, node in enumerate(self._plan.nodes):
                if isinstance(node, Launch):
                    self._launch(number, node)
                elif isinstance(node, Fill):
                    self._machine.view(node.view).fill_(node.value)
                elif isinstance(node, Copy):
                    self._machine.view(node.target).copy_(self._machine.view(node.source))
                elif isinstance(node, Constant):
                    self._machine.view(node.view).copy_(table_of(node))
        return [self._machine.view(view).clone() for view in self._plan.outputs]

    def _launch(self, number: int, launch: Launch) -> None:
        total = math.prod(launch.grid)
        chosen = range(total) if self._whole else dict.fromkeys(int(place * total) for place in self._places)
        builder, bound = self._machine.bind(launch)
        assert isinstance(builder, WatchingBuilder)
        known, stored = self._stored.get(number), []
        began = time.monotonic()
        for at in chosen:
            # The other runs follow the first; later launches go no further than earlier ones went.
            if known is not None and len(stored) == len(known):
                break
            if not self._whole and known is None and stored and time.monotonic() - began > SECONDS:
                self._places = self._places[: len(stored)]
                break
            x, y, z = (int(i) for i in np.unravel_index(at, launch.grid[::-1])[::-1])
            builder.stored.clear()
            self._machine.program(builder, bound, (x, y, z))
            stored.append(dict(builder.stored))
        self._stored.setdefault(number, stored)

    def _written(self) -> list[float | None]:
        return [self._written_to(view.buffer) for view in self._plan.outputs]

    def _written_to(self, buffer: int) -> float | None:
        writers = [n for n, stored in self._stored.items() if any(program.get(buffer) for program in stored)]
        fills = any(isinstance(node, Fill) and node.view.buffer == buffer for node in self._plan.nodes)
        if len(writers) != 1 or fills or self._whole:
            return None
        counts = np.array([program.get(buffer, 0) for program in self._stored[writers[0]]], dtype=float)
        launch = self._plan.nodes[writers[0]]
        assert isinstance(launch, Launch)
        if len(counts) < 4 or counts.std() > EVEN * counts.mean():
            return None
        return float(counts.mean() * math.prod(launch.grid))


def _bytes(path: Path) -> torch.Tensor:
    data = np.memmap(path, dtype=np.uint8, mode="c") if path.stat().st_size else np.zeros(0, dtype=np.uint8)
    return torch.from_numpy(np.asarray(data))


def _agreed(runs: Sequence[torch.Tensor], doubt_nan: bool) -> dict[str, Any]:
    """Where all runs agree to the bit, and what they say there. `doubt_nan`: NaN is unknown."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[runs[0].element_size()]
    left, *others = (run.contiguous().view(kind).flatten() for run in runs)
    same = torch.stack([left == other for other in others]).all(0)
    if doubt_nan:
        same &= ~runs[0].isnan().flatten()
    places = same.nonzero().flatten()
    unknown = left.numel() - places.numel()
    if places.numel() > PLACES:
        places = places[:: -(-places.numel() // PLACES)]
    return {"places": _encoded(places), "values": _encoded(left[places]), "unknown": unknown}


def _encoded(values: torch.Tensor) -> str:
    return base64.b64encode(values.numpy().tobytes()).decode()
