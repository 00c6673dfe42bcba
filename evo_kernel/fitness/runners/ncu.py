"""Nsight Compute as a child: found, asked about one small trusted replay (ncu_target.py), killed when it is late.

The card's settings stay as they are (`--clock-control none`), nothing but our launches is profiled
(`--profile-from-start off`; the child turns it on around each), no graphs, and caches are flushed before every pass as
the judge's clock does it (`--cache-control all`). What comes back is text of ncu's, bounded and parsed in counters.py.
"""

from __future__ import annotations

import glob
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evo_kernel import processes
from evo_kernel.fitness.plan.launch_plan import save_plan_file
from evo_kernel.fitness.profiling.counters import (
    METRICS,
    CountedKernel,
    CounterReading,
    CountPart,
    medians,
    read_csv,
    unknown_metrics,
)
from evo_kernel.fitness.sandbox.scratch import Scratch
from evo_kernel.processes import BoundedOutput
from evo_kernel.tasks.task import Task

MOST_LAUNCHES = 16  # of a plan, from its first: each is run again for every pass of the counters
ROUNDS = 3  # of which a counter's median is taken: clocks are free to move
_ATTEMPTS = 4  # each leaves out the metrics that the last one did not know
_OUTPUT_BYTES = 8 << 20
_KEPT_CHARACTERS = 6000
PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda-*/bin/ncu")
_SENTENCES = {
    "ERR_NVGPUCTRPERM": (
        "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM): an administrator can allow it "
        "(NVreg_RestrictProfilingToAdminUsers=0, or the SYS_ADMIN capability for a container)"
    ),
    "LibraryNotLoaded": "Nsight Compute could not load the driver's profiling library (LibraryNotLoaded)",
    "driver resource was unavailable": (
        "another tool holds the GPU's counters (often DCGM: `dcgmi profmgr --pause` frees them)"
    ),
}


def find_ncu(usual: Sequence[str] = PLACES) -> str | None:
    """The newest `ncu` of the usual places, the PATH first."""
    if found := shutil.which("ncu"):
        return found
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [*([f"{home}/bin/ncu"] if home else []), *(p for place in usual for p in sorted(glob.glob(place))[::-1])]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def count(
    task: Task, parts: Sequence[CountPart], env: Mapping[str, str], deadline_s: float, ncu: str | None = None
) -> CounterReading:
    """Counters of every part's launches, in one run of ncu; `env` names the GPU. Never raises for what ncu does."""
    ncu = ncu or find_ncu()
    if ncu is None:
        return _none("`ncu` is neither on the PATH nor where CUDA usually is")
    end = time.monotonic() + deadline_s
    with Scratch("ncu") as folder:
        request = _request(task, parts, folder, deadline_s)
        metrics, said, code = list(METRICS), "", 0
        for _ in range(_ATTEMPTS):
            said, code = run_bounded(command(ncu, metrics, request), env, end - time.monotonic())
            if code is None:
                return _none(f"ncu was not done after {deadline_s:g} s", said)
            if kernels := read_csv(said):
                return _by_launch(parts, kernels, said)
            unknown = unknown_metrics(said, metrics)
            metrics = [name for name in metrics if name not in unknown]
            if not unknown or not metrics:
                break
            if known := _known_metrics(ncu, env, end - time.monotonic()):
                metrics = [name for name in metrics if name.split(".")[0] in known]
        return _none(reason(said, code), said)


def _none(why: str, said: str = "") -> CounterReading:
    return CounterReading(why=f"no Nsight Compute counters: {why}", said=said[-_KEPT_CHARACTERS:])


def command(ncu: str, metrics: Sequence[str], request: Path) -> list[str]:
    """The whole command line."""
    return [
        ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "all",
        "--replay-mode", "kernel", "--target-processes", "application-only", "--profile-from-start", "off",
        "--metrics", ",".join(metrics), sys.executable, "-P", "-m", "evo_kernel.fitness.runners.ncu_target",
        str(request),
    ]  # fmt: skip


def _request(task: Task, parts: Sequence[CountPart], folder: Path, deadline_s: float) -> Path:
    told = []
    for number, part in enumerate(parts):
        plan = folder / f"{number}.plan"
        save_plan_file(part.plan, plan)
        told.append({"plan": str(plan), "case": part.case.name, "seed": part.seed, "launches": _wanted(part)})
    path = folder / "request.json"
    path.write_text(json.dumps({"task": task.spec, "parts": told, "rounds": ROUNDS, "deadline_s": deadline_s}))
    return path


def _wanted(part: CountPart) -> int:
    return min(len(part.plan.plan.launches), MOST_LAUNCHES)


def _by_launch(parts: Sequence[CountPart], kernels: Sequence[CountedKernel], said: str) -> CounterReading:
    """Launches are profiled part by part, round by round, in order: that is how they are told apart."""
    wanted = sum(_wanted(part) * ROUNDS for part in parts)
    if len(kernels) != wanted:
        return _none(f"{len(kernels)} of {wanted} launches were counted; {reason(said, 0)}", said)
    if not any(kernel.values for kernel in kernels):
        return _none(f"ncu names them and gives no numbers; {reason(said, 0)}", said)
    found, start = [], 0
    for part in parts:
        width = _wanted(part)
        mine = kernels[start : start + width * ROUNDS]
        found.append({launch: medians(mine[launch::width]) for launch in range(width)})
        start += width * ROUNDS
    return CounterReading(tuple(found))


def reason(said: str, code: int | None) -> str:
    """Why ncu gave no counters: a sentence for the usual causes, else its own last error."""
    for sign, sentence in _SENTENCES.items():
        if sign in said:
            return sentence
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line for line in lines if not line.startswith(("==", '"'))][-1:]  # of the replay: how its fault ends
    for level in ("==ERROR== ", "==WARNING== "):
        if told := [line.removeprefix(level) for line in lines if line.startswith(level)]:
            return f"ncu says: {'; '.join([told[0], *ours])[:400]}"
    return f"ncu ended with code {code} and said last: {(lines or ['nothing'])[-1][:300]}"


def _known_metrics(ncu: str, env: Mapping[str, str], deadline_s: float) -> set[str]:
    """Base names that this ncu knows for the GPU; empty where it does not say."""
    said, code = run_bounded([ncu, "--query-metrics"], env, deadline_s)
    known = {line.split()[0] for line in said.splitlines() if "__" in line.split(" ", 1)[0]}
    asked = {name.split(".")[0] for name in METRICS}
    return known if code == 0 and 2 * len(known & asked) > len(asked) else set()


def run_bounded(command: Sequence[str], env: Mapping[str, str], deadline_s: float) -> tuple[str, int | None]:
    """What a command printed on either stream, at most so much, and its exit status; None when it was late."""
    said = io.BytesIO()
    output = BoundedOutput(said, _OUTPUT_BYTES)

    def full() -> bool:
        return output.seen > _OUTPUT_BYTES

    ended = processes.run(command, deadline_s, output.take, {**env, "LC_ALL": "C.UTF-8"}, enough=full)
    output.finish()
    if ended.how == "stopped":
        said.write(b"\n==ERROR== more output than is read\n")
    return said.getvalue().decode(errors="replace"), None if ended.how == "deadline" else ended.code
