"""Asks a benchmark's own harness about a kernel, which is written as the benchmark's file first.

A program: its argument is a file with the arguments of `asked` as JSON. The last line of its output is the answer.

KernelBench's harness is the code of the user's checkout (src/kernelbench/eval.py). On a GPU `eval_kernel_against_ref`
decides and times, with the settings of scripts/eval_from_generations.py; but inputs are drawn on the GPU, and slow
kernels are timed less often. Then the same with all floating inputs scaled, and eager timed with TF32. Without a GPU
its comparison runs at small sizes, in the executor of IR, and nothing is timed. The harness runs the kernel in its own
process, next to the clock: what it says is its word, not this project's.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from evo_kernel.app.solutions import kernelbench_solution, solution_text, write_solution
from evo_kernel.errors import EvoKernelError, TaskError
from evo_kernel.export.solutions import PREDICTIONS
from evo_kernel.fitness.gpus import turn
from evo_kernel.observe.suites import CORRECT, NONE, WRONG, Stock
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.compiled.stand_in import PROPERTIES
from evo_kernel.tasks.importers import kernelbench
from evo_kernel.tasks.importers.checkout import read_text
from evo_kernel.tasks.loading import load, problem_of
from evo_kernel.tasks.problems import Problem, assigned
from evo_kernel.tasks.task import describe
from evo_kernel.types import CaseKind, Source

TRIALS, TIMED = 5, 100
"""Of correctness and of timing: the harness's own defaults."""
SCALES = {"x3": 3.0, "x0.01": 0.01, "x-1": -1.0}
TIMING_US = 4e6
"""Of kernel and reference together, over all timed trials: above it there are fewer, at least ten."""
CLIENTS = ("openai", "litellm", "dotenv", "requests", "tqdm")
"""What the package imports to ask language models: nothing of it is needed here, and much is not installed or slow."""

MISMATCH = "Output"  # how its own sentences about a wrong output begin


def home_of(problem: Path) -> Path:
    """The checkout that a problem's file belongs to. Raises TaskError where it has no harness."""
    for folder in list(problem.parents)[1:3]:
        if (folder / "src/kernelbench/eval.py").is_file():
            return folder
    raise TaskError(
        f"{problem.parents[2]} holds problems but not the harness (src/kernelbench/eval.py): clone it whole"
    )


def harness_of(checkout: Path) -> types.ModuleType:
    """Its `kernelbench.eval`, with empty modules in place of clients of language models. Raises TaskError."""
    stands = {name: _Stand(name) for name in CLIENTS if name not in sys.modules}
    sys.modules.update(stands)
    sys.path.insert(0, str(checkout / "src"))
    available, torch.cuda.is_available = torch.cuda.is_available, lambda: False  # its import would ask for a context:
    try:  # a search may be measured on the GPU meanwhile
        return importlib.import_module("kernelbench.eval")
    except Exception as error:
        install = f" Install {error.name} for it." if isinstance(error, ModuleNotFoundError) else ""
        raise TaskError(f"its harness does not import: {describe(error)}.{install}") from error
    finally:
        torch.cuda.is_available = available
        for name in stands:  # a problem may want the real one
            del sys.modules[name]


class _Stand(types.ModuleType):
    """Answers any `from NAME import SOMETHING` with a function that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def hear(harness: types.ModuleType, problem: str, solution: str, device: str, timed: int = TIMED) -> Stock:
    """What the harness says. `problem`: the text of its file; on a CPU, at sizes that the executor can run."""
    if device == "cuda":
        stock = _on_gpu(harness, problem, solution, timed)
    else:
        torch.cuda.synchronize = lambda device=None: None  # there is nothing to wait for
        torch.cuda.get_device_properties = lambda device=None: PROPERTIES  # kernels ask how many multiprocessors it has
        stock = replace(_of(_compared(harness, problem, solution, TRIALS)), sizes="small")
        if stock.verdict == WRONG and not stock.reason.startswith(MISMATCH):  # the executor lacks things
            stock = replace(stock, verdict=NONE, reason=f"without a GPU {stock.reason}")
    refused = _refused(solution)
    return replace(stock, notes=(*stock.notes, *refused))


def timed_within(expected_us: float | None) -> int:
    """How many timed trials a kernel and its reference get that take so long together."""
    return TIMED if not expected_us else max(10, min(TIMED, int(TIMING_US / expected_us)))


def at_sizes(source: str, path: str, sizes: Mapping[str, Any]) -> str:
    """The problem's text with some of its module constants set to other values."""
    body: list[ast.stmt] = []
    for statement in Problem(source, path).statements:
        body.append(statement)
        for name in assigned(statement):
            if name in sizes:
                body.append(ast.Assign([ast.Name(name, ast.Store())], parse_module(repr(sizes[name])).body[0].value))  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def drawn(source: str, factor: float, device: str) -> str:
    """The problem's text with its inputs drawn on a device and scaled where they are floating point."""
    return (
        f"{source}\n\n\n_drawn_as_written = get_inputs\n\n\n"
        "def get_inputs():\n"
        "    import torch\n"
        f"    with torch.device({device!r}):\n"
        "        values = _drawn_as_written()\n"
        "    floating = lambda value: isinstance(value, torch.Tensor) and value.is_floating_point()\n"
        f"    return [value * {factor!r} if floating(value) else value for value in values]\n"
        if factor != 1.0 or device != "cpu"
        else source
    )


def _on_gpu(harness: types.ModuleType, problem: str, solution: str, timed: int) -> Stock:
    device = torch.device("cuda:0")
    asked: dict[str, Any] = {"backend": "triton", "precision": torch.float32, "device": device}
    result = harness.eval_kernel_against_ref(
        drawn(problem, 1.0, "cuda"), solution, num_correct_trials=TRIALS, num_perf_trials=timed,
        measure_performance=True, timing_method="cuda_event", **asked,
    )  # fmt: skip
    stock = _of(result)
    if not stock.correct:
        return stock
    scaled = {}
    for name, factor in SCALES.items():
        again = harness.eval_kernel_against_ref(
            drawn(problem, factor, "cuda"), solution, num_correct_trials=1, measure_performance=False, **asked
        )
        scaled[name] = again is not None and again.correctness
    notes = ["its harness calls the speed-up excessive"] if result.metadata.get("excessive_speedup") else []
    if (error := result.metadata.get("error_during_performance")) is not None:
        notes.append(f"its harness could not time the kernel: {error}")
    return replace(
        stock,
        us=_us(result.runtime),
        eager_us=_us(result.ref_runtime),
        tf32_us=_tf32_us(harness, drawn(problem, 1.0, "cuda"), device, timed),
        timed=timed,
        scaled=scaled,
        notes=tuple(notes),
    )


def _tf32_us(harness: types.ModuleType, problem: str, device: torch.device, timed: int) -> float | None:
    """Eager by the harness's own clock, with TF32 allowed."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        stats = harness.timing.measure_ref_program_time("reference", problem, num_trials=timed, device=device)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    return _us(stats["mean"]) if stats else None


def _us(milliseconds: float) -> float | None:
    return milliseconds * 1000 if milliseconds > 0 else None


def _compared(harness: types.ModuleType, problem: str, solution: str, trials: int) -> Any:
    """As eval_kernel_against_ref does it on a GPU, up to its timing."""
    original, initial, _ = harness.load_original_model_and_inputs(problem, {})
    new, temporary = harness.load_custom_model_with_tempfile(solution, entry_point="ModelNew")
    try:
        with torch.no_grad():
            harness.set_seed(42)
            given = [harness._process_input_tensor(value, "cpu", "triton") for value in initial()]
            made = []
            for model in (original, new):
                harness.set_seed(42)
                made.append(model(*given).to(dtype=torch.float32))
        results = []
        for factor, count in ((1.0, trials), *((factor, 1) for factor in SCALES.values())):
            text: dict[str, Any] = {}
            exec(compile(drawn(problem, factor, "cpu"), "<problem>", "exec"), text)
            results.append(
                harness.run_and_check_correctness(
                    *made, text["get_inputs"], metadata={}, num_correct_trials=count, seed=42, device="cpu",
                    backend="triton",
                )
            )  # fmt: skip
            if not results[0].correctness:
                break
    finally:
        temporary.close()
        os.remove(temporary.name)
    results[0].metadata["scaled"] = {name: one.correctness for name, one in zip(SCALES, results[1:], strict=False)}
    return results[0]


def _of(result: Any) -> Stock:
    """Its result as ours. What is not the kernel's fault is no verdict."""
    if result is None:
        return Stock(NONE, "its harness was kept from compiling by a lock; ask again")
    told: Mapping[str, Any] = result.metadata
    scaled = dict(told.get("scaled", {}))
    if result.correctness:
        return Stock(CORRECT, scaled=scaled)
    if not result.compiled:
        return Stock(WRONG, f"it does not load: {_short(told.get('compilation_error', ''))}")
    fault = told.get("runtime_error")
    if fault is not None and "runtime_error_traceback" not in told:  # raised by the problem's own model
        return Stock(NONE, f"its harness cannot run the problem's own model: {_short(fault)}")
    if fault is not None:
        return Stock(WRONG, f"it fails when it runs: {_short(fault)}")
    differs = f" (off by up to {', '.join(told['max_difference'])})" if told.get("max_difference") else ""
    return Stock(WRONG, f"{_short(told.get('correctness_issue', 'other output'))}{differs}")


def _refused(solution: str) -> Sequence[str]:
    """What its static checker says: reported by it, and no part of its verdict."""
    try:
        checker = importlib.import_module("kernelbench.kernel_static_checker")
        fine, errors, _ = checker.validate_kernel_static(solution, backend="triton", precision="fp32")
    except Exception as error:  # noqa: BLE001  somebody else's package may raise anything
        return (f"its static checker does not run: {describe(error)}",)
    return () if fine else tuple(f"its static checker: {_short(error)}" for error in errors)


def _short(value: object) -> str:
    return " ".join(str(value).split())[:200]


def asked(
    spec: str, kernel: str, folder: str, device: str, ask: bool, module: str = "", expected_us: float | None = None
) -> Stock:
    """Write the kernel into `folder` as a solution of the problem; then, if wanted, ask KernelBench's harness about it.

    `module`: a file for the text that the solution is written around, which takes seconds to make. `expected_us`:
    kernel and reference together, where they were measured. Raises UserError, and what a harness does.
    """
    source, place = Source(kernel), Path(folder)
    kept = written_module(module, source)
    text = kept or solution_text(spec, source, device)
    if spec.startswith("kernelbench:"):
        (place / kernelbench_solution(spec, text).file_name(0)).unlink(missing_ok=True)  # of an earlier kernel
    else:
        for name in (f"{Path(spec).name}.py", PREDICTIONS):  # of an earlier kernel, as TritonBench wants them
            (place / name).unlink(missing_ok=True)
    write_solution(spec, text, place)
    if module and kept is None:
        Path(module).write_text(json.dumps({"kernel": source.sha256, "text": text}), encoding="utf-8")
    return _asked(spec, text, device, expected_us) if ask else Stock(NONE)


def write_best(spec: str, population: str, folder: str, module: str, device: str) -> None:
    """Write the best kernel of a population as a solution; where that fails, who asks about it is told why."""
    source = best_source(Path(population))
    if source is not None:
        with contextlib.suppress(EvoKernelError):
            asked(spec, source.text, folder, device, False, module)


def best_source(population: Path) -> Source | None:
    """The champion's source, or the best one's, as it was scored; None where nothing passed."""
    from populations.reading import PopulationReader

    if not population.exists():
        return None
    with PopulationReader(population) as reader:
        best = reader.leader()
        return reader.relative(best.candidate).source if best is not None else None


def written_module(module: str, source: Source) -> str | None:
    """The text that a solution of this kernel was written around; None where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads(Path(module).read_text(encoding="utf-8"))
        if written["kernel"] == source.sha256:
            return str(written["text"])
    return None


def _asked(spec: str, text: str, device: str, expected_us: float | None) -> Stock:
    """What KernelBench's harness says of a module with `run`."""
    solution = kernelbench_solution(spec, text)
    entry = problem_of(spec)
    source = read_text(entry.path)
    harness = harness_of(home_of(entry.path))
    if device == "cuda":
        timed = timed_within(expected_us)
        with turn(str(torch.cuda.get_device_properties(0).uuid), lambda: False):  # other searches may share the GPU
            return hear(harness, source, solution.text(), device, timed)
    from evo_kernel.fitness.ir import programs  # noqa: F401  the file's launches are executed by it

    sizes = load(spec).cases_of(CaseKind.CHECK)[0].sizes
    small = at_sizes(source, str(entry.path), sizes)
    there = replace(solution, skeleton=kernelbench.skeleton(small))
    return hear(harness, small, there.text(), device)


def main() -> None:
    """One line of JSON on standard output; what others print goes to the errors."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = os.dup(1)
    os.dup2(2, 1)
    if order["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    try:
        stock = asked(**order)
    except EvoKernelError as error:
        stock = Stock(NONE, str(error))
    except Exception as error:  # noqa: BLE001  somebody else's harness may raise anything: that is no verdict
        stock = Stock(NONE, f"its harness failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    told = asdict(stock) | {"seconds": time.monotonic() - began}
    os.write(answer, json.dumps(told).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # threads of the harness, and a context that a kernel has broken, are not waited for


if __name__ == "__main__":
    main()
