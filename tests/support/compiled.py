"""Kernels that torch.compile's back end generates for small references, executed by our executor in one process."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.support.scripts import script

RUN = """
import importlib.util, sys, torch
from pathlib import Path
from evo_kernel.fitness.ir.jit import install
torch.set_num_threads(1)
install()
for path in sorted(Path(sys.argv[1]).glob("*.py")):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = []
    for inputs in torch.load(path.with_suffix(".in"), weights_only=True):
        out = module.run(*inputs)
        results.append([out] if isinstance(out, torch.Tensor) else list(out))
    torch.save(results, path.with_suffix(".out"))
"""
Inputs = tuple[torch.Tensor, ...]


def draw(shapes: Sequence[Sequence[Sequence[int]]]) -> list[Inputs]:
    """Inputs of each case."""
    generator = torch.Generator().manual_seed(3)
    return [tuple(torch.randn(shape, generator=generator) for shape in case) for case in shapes]


def results_of(
    folder: Path, texts: Mapping[str, str], cases: Mapping[str, list[Inputs]]
) -> dict[str, list[list[torch.Tensor]]]:
    """Outputs by name of module and case."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
        torch.save(cases[name], folder / f"{name}.in")
    subprocess.run(script("-c", RUN, folder), check=True, timeout=300)
    return {name: torch.load(folder / f"{name}.out", weights_only=True) for name in texts}
