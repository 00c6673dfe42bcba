"""The ordinary way to score a kernel: run its Python, five allclose trials, a hundred timed events.

`python -P benchmarks/ordinary.py TASK_FOLDER SOURCES.json` judges each source of the list in this one process, and
prints a JSON line a source. Started once a candidate it is the fresh-process way, started once for all the warm one.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind


def judged(task: object, text: str, folder: Path, number: int) -> dict[str, object]:
    began = time.perf_counter()
    path = folder / f"candidate_{number}.py"
    path.write_text(text)
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        case = task.cases_of(CaseKind.SEARCH)[0]  # type: ignore[attr-defined]
        for trial in range(5):
            generator = torch.Generator("cuda").manual_seed(trial)
            inputs = task.inputs(case, generator, "cuda")  # type: ignore[attr-defined]
            wanted = task.outputs(*inputs)  # type: ignore[attr-defined]
            got = module.run(*inputs)
            got = got if isinstance(got, tuple) else (got,)
            right = all(torch.allclose(g, w, rtol=1e-2, atol=1e-2) for g, w in zip(got, wanted, strict=True))
            if not right:
                return {"right": False, "s": time.perf_counter() - began}
        times = []
        for _ in range(3):
            module.run(*inputs)
        for _ in range(100):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            module.run(*inputs)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        return {"right": True, "us": statistics.median(times), "s": time.perf_counter() - began}
    except Exception as error:  # noqa: BLE001 (a candidate may fail in any way: that is its answer)
        return {"right": False, "error": repr(error)[:300], "s": time.perf_counter() - began}


def main() -> None:
    task = load(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(json.loads(Path(sys.argv[2]).read_text())):
            print(json.dumps(judged(task, text, Path(folder), number)), flush=True)


if __name__ == "__main__":
    main()
