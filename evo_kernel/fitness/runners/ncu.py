"""Runs Nsight Compute on a trusted replay of plans, with a deadline; ncu starts the replay as this file.

The GPU's clocks stay as they are (`--clock-control none`). Only launches of the plan are profiled
(`--profile-from-start off`; the replay enables it around each, so torch's launches are not counted), without graphs.
Caches are flushed before every pass, as the judge's clock does (`--cache-control all`). counters.py parses ncu's
output, which is bounded. The replay draws inputs as the GPU process does. No candidate Python runs.
"""

from __future__ import annotations

import glob
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evo_kernel import processes
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Launch, load_plan_file, save_plan_file
from evo_kernel.fitness.profiling.counters import (
    METRICS,
    CountedKernel,
    CounterReading,
    CountPart,
    medians,
    read_csv,
    unknown_metrics,
)
from evo_kernel.fitness.runners.cuda_memory import Arena
from evo_kernel.fitness.runners.worker_state import fill
from evo_kernel.processes import BoundedOutput
from evo_kernel.scratch import Scratch
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Input, Task

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import CudaDevice
    from evo_kernel.fitness.runners.cuda_driver import Launcher


MOST_LAUNCHES = 16  # the first of a plan: each is repeated for every pass of the counters
ROUNDS = 3  # a counter is the median of so many runs, because clocks vary
_ATTEMPTS = 4  # each omits metrics that the previous one did not know
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
    """Counters of all parts' launches, in one run of ncu; `env` selects the GPU. Faults of ncu do not raise."""
    ncu = ncu or find_ncu()
    if ncu is None:
        return _none("`ncu` is neither on the PATH nor where CUDA usually is")
    end = time.monotonic() + deadline_s
    with Scratch("ncu") as folder:
        request = _request(task, parts, folder, deadline_s)
        metrics, output, code = list(METRICS), "", 0
        for _ in range(_ATTEMPTS):
            output, code = run_bounded(command(ncu, metrics, request), env, end - time.monotonic())
            if code is None:
                return _none(f"ncu was not done after {deadline_s:g} s", output)
            if kernels := read_csv(output):
                return _by_launch(parts, kernels, output)
            unknown = unknown_metrics(output, metrics)
            metrics = [name for name in metrics if name not in unknown]
            if not unknown or not metrics:
                break
            if known := _known_metrics(ncu, env, end - time.monotonic()):
                metrics = [name for name in metrics if name.split(".")[0] in known]
        return _none(reason(output, code), output)


def _none(why: str, output: str = "") -> CounterReading:
    return CounterReading(why=f"no Nsight Compute counters: {why}", output=output[-_KEPT_CHARACTERS:])


def command(ncu: str, metrics: Sequence[str], request: Path) -> list[str]:
    return [
        ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "all",
        "--replay-mode", "kernel", "--target-processes", "application-only", "--profile-from-start", "off",
        "--metrics", ",".join(metrics), sys.executable, "-P", "-m", "evo_kernel.fitness.runners.ncu",
        str(request),
    ]  # fmt: skip


def _request(task: Task, parts: Sequence[CountPart], folder: Path, deadline_s: float) -> Path:
    parts_data = []
    for number, part in enumerate(parts):
        plan = folder / f"{number}.plan"
        save_plan_file(part.plan, plan)
        parts_data.append({"plan": str(plan), "case": part.case.name, "seed": part.seed, "launches": _wanted(part)})
    path = folder / "request.json"
    path.write_text(json.dumps({"task": task.spec, "parts": parts_data, "rounds": ROUNDS, "deadline_s": deadline_s}))
    return path


def _wanted(part: CountPart) -> int:
    return min(len(part.plan.plan.launches), MOST_LAUNCHES)


def _by_launch(parts: Sequence[CountPart], kernels: Sequence[CountedKernel], output: str) -> CounterReading:
    """Counters by part. Launches are profiled part by part and round by round, which identifies them."""
    wanted = sum(_wanted(part) * ROUNDS for part in parts)
    if len(kernels) != wanted:
        return _none(f"{len(kernels)} of {wanted} launches were counted; {reason(output, 0)}", output)
    if not any(kernel.values for kernel in kernels):
        return _none(f"ncu names them and gives no numbers; {reason(output, 0)}", output)
    found, start = [], 0
    for part in parts:
        width = _wanted(part)
        mine = kernels[start : start + width * ROUNDS]
        found.append({launch: medians(mine[launch::width]) for launch in range(width)})
        start += width * ROUNDS
    return CounterReading(tuple(found))


def reason(output: str, code: int | None) -> str:
    """Why ncu returned no counters: a sentence for known causes, else its last error."""
    for sign, sentence in _SENTENCES.items():
        if sign in output:
            return sentence
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ours = [line for line in lines if not line.startswith(("==", '"'))][-1:]  # the replay's error message
    for level in ("==ERROR== ", "==WARNING== "):
        if parts_data := [line.removeprefix(level) for line in lines if line.startswith(level)]:
            return f"ncu reports: {'; '.join([parts_data[0], *ours])[:400]}"
    return f"ncu ended with code {code} after: {(lines or ['nothing'])[-1][:300]}"


def _known_metrics(ncu: str, env: Mapping[str, str], deadline_s: float) -> set[str]:
    """Metric base names that this ncu knows for the GPU; empty if it does not list them."""
    output, code = run_bounded([ncu, "--query-metrics"], env, deadline_s)
    known = {line.split()[0] for line in output.splitlines() if "__" in line.split(" ", 1)[0]}
    asked = {name.split(".")[0] for name in METRICS}
    return known if code == 0 and 2 * len(known & asked) > len(asked) else set()


def run_bounded(command: Sequence[str], env: Mapping[str, str], deadline_s: float) -> tuple[str, int | None]:
    """A command's bounded output (both streams) and exit status, None if it exceeded the deadline."""
    printed = io.BytesIO()
    output = BoundedOutput(printed, _OUTPUT_BYTES)

    def full() -> bool:
        return output.seen > _OUTPUT_BYTES

    ended = processes.run(command, deadline_s, output.take, {**env, "LC_ALL": "C.UTF-8"}, enough=full)
    output.finish()
    if ended.how == "stopped":
        printed.write(b"\n==ERROR== output limit exceeded\n")
    return printed.getvalue().decode(errors="replace"), None if ended.how == "deadline" else ended.code


def main() -> None:
    os.dup2(2, 1)  # stdout is for ncu's table
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    signal.alarm(int(request["deadline_s"]) + 10)  # it must end even if its parent has ended
    task = load(request["task"])
    from evo_kernel.fitness.runners.cuda_device import CudaDevice

    device = CudaDevice()
    for part in request["parts"]:
        generator = torch.Generator(device.name).manual_seed(int(part["seed"]))
        inputs = regimes.apply("nominal", task.inputs(task.case(part["case"]), generator, device.name))
        plan = load_plan_file(Path(part["plan"]))
        replay(plan, inputs, int(part["launches"]), int(request["rounds"]), device, _profiler)


def replay(
    compiled: CompiledPlan,
    inputs: Sequence[Input],
    launches: int,
    rounds: int,
    device: CudaDevice,
    profiler: Callable[[bool], None],
) -> None:
    """Run the plan once without profiling, because a first launch loads code, then `rounds` times with profiling.

    Each run starts in the state of a timed launch. `profiler` is switched on and off around each of the first
    `launches` kernel launches.
    """
    arena, launcher = device.arena(compiled), device.launcher(compiled)
    for number in range(rounds + 1):
        fill(arena, compiled, inputs)  # again, as a kernel may change them in place
        launcher.prepare(arena)
        _walk(compiled, launcher, arena, launches if number else 0, device, profiler)
    launcher.close()


def _walk(
    compiled: CompiledPlan,
    launcher: Launcher,
    arena: Arena,
    counted: int,
    device: CudaDevice,
    profiler: Callable[[bool], None],
) -> None:
    """Launch every node in order."""
    seen = 0
    for index, node in enumerate(compiled.plan.nodes):
        seen += isinstance(node, Launch)
        watched = isinstance(node, Launch) and seen <= counted
        device.synchronize()
        if watched:
            profiler(True)
        launcher.step(arena, index)
        device.synchronize()
        if watched:
            profiler(False)


def _profiler(on: bool) -> None:
    """Switch ncu's profiling on or off. Without ncu the driver may report an error, which is ignored."""
    runtime: Any = torch.cuda.cudart()
    (runtime.cudaProfilerStart if on else runtime.cudaProfilerStop)()


if __name__ == "__main__":
    main()
