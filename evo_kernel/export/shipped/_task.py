"""The task files that travel with the package: what is computed, on what, and how exactly."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


@functools.cache
def load(name: str) -> types.ModuleType:
    """A task file as a module. What it takes from evo-kernel itself travels in `_helpers`."""
    path = HERE / "tasks" / name / "task.py"
    text = path.read_text(encoding="utf-8").replace("from evo_kernel.tasks import", "from ._helpers import")
    module = types.ModuleType(f"{__package__}.tasks.{name}")
    module.__file__, module.__package__ = str(path), __package__
    sys.modules[module.__name__] = module
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def mutates(module: types.ModuleType) -> list[int]:
    """Positions of the inputs that the operator changes in place."""
    names = list(inspect.signature(module.reference).parameters)
    return sorted(names.index(name) for name in getattr(module, "MUTATES", ()))


def called(module: types.ModuleType, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What the reference returns, always as a tuple. It may change inputs."""
    made = module.reference(*inputs)
    return () if made is None else (made,) if isinstance(made, torch.Tensor) else tuple(made)


def outputs(module: types.ModuleType, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What the reference computes: what it returns, then the inputs that it changes, of which these are copies."""
    changed = mutates(module)
    given = [value.clone() if position in changed else value for position, value in enumerate(inputs)]
    return (*called(module, given), *(given[position] for position in changed))


def draw(module: types.ModuleType, case: dict[str, Any], seed: int, device: str) -> tuple[Any, ...]:
    """Inputs of a case. Those whose values launches follow from have the values that were judged."""
    generator = torch.Generator(device).manual_seed(seed)
    made = module.inputs(case["sizes"], generator, torch.device(device))
    values = list(made) if isinstance(made, (tuple, list)) else [made]
    for position, spec in enumerate(case["inputs"]):
        if "host" in spec:
            values[position] = torch.tensor(spec["host"], dtype=values[position].dtype, device=device)
    return tuple(values)
