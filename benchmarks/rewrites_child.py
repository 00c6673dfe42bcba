"""Executes rewritten sources without a GPU: the child process of `benchmarks.rewrites`."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from evo_kernel.fitness.ir.jit import install
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.probe import within
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind


def verdict(path: Path, task: Task, drawn: list[Any]) -> tuple[bool, str]:
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for case, inputs, honest, truth in drawn:
            got = module.run(*[value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])
            got = got if isinstance(got, tuple) else (got,)
            if not within(task, got, honest, truth):
                worst = max(float((g.double() - t.double()).abs().max()) for g, t in zip(got, truth, strict=True))
                return False, f"case {case.name}: off by {worst:.3g}"
    except Exception as error:  # noqa: BLE001 (a rewritten source may fail in any way: that is the answer)
        return False, f"{type(error).__name__}: {str(error)[-400:]}"
    return True, ""


def draw(task: Task) -> list[Any]:
    drawn = []
    for case in task.cases_of(CaseKind.CHECK):
        inputs = task.inputs(case, torch.Generator("cpu").manual_seed(11), "cpu")
        drawn.append((case, inputs, task.outputs(*inputs), task.truth(*inputs)))
    return drawn


def main() -> None:
    torch.set_num_threads(1)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=4)  # type: ignore[assignment]
    install()
    known: dict[str, tuple[Task, list[Any]]] = {}
    with tempfile.TemporaryDirectory() as folder, open(sys.argv[2], "w") as answers:
        for number, (text, spec) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
            if spec not in known:
                task = load(spec)
                known[spec] = (task, draw(task))
            path = Path(folder) / f"rewritten_{number}.py"
            path.write_text(text)
            answers.write(json.dumps(verdict(path, *known[spec])) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
