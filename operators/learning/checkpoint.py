"""Checkpoints: a trained model with its settings, in one file that holds no code.

    save(path, model, about)
    model, about = load(path)

The file is PyTorch's own format, read with `weights_only`: tensors, numbers and texts, nothing that runs. A language
model is stored as its name and what was trained (adapters and critic), not with its base.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import UserError
from operators.learning.language import LanguagePolicy, LanguageSettings
from operators.learning.network import Network, NetworkSettings, Scorer
from operators.learning.sight import STRATEGIES, Seen
from operators.macro.features import FEATURES

FORMAT, VERSION = "evo-kernel policy", 1
LARGEST = 20 * 2**20  # bytes, of a network

Plain = Mapping[str, str | int | float | bool]


def save(path: Path, model: Scorer, about: Plain) -> int:
    """Writes it at once or not at all; returns its size in bytes. `about`: how it came to be, told by `show`."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "kind": model.kind,
        "settings": asdict(model.settings),
        "model": {name: value.cpu() for name, value in model.stored().items()},
        "words": {"features": list(FEATURES), "strategies": list(STRATEGIES)},
        "about": dict(about),
    }
    part = path.with_name(f".{path.name}.part")
    torch.save(data, part)
    os.replace(part, path)
    return path.stat().st_size


def load(path: Path) -> tuple[Scorer, dict[str, Any]]:
    """The model, ready to score, and what is told about it. Raises UserError."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}")
        _check(path, data)
        model = _model(data)
        model.restore(data["model"])
    except OSError as error:
        raise UserError(f"{path}: the policy cannot be read: {error.strerror or error}.") from None
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, TypeError, EOFError) as error:
        told = str(error).splitlines()[0] if str(error) else ""
        raise UserError(
            f"{path} is no trained policy ({type(error).__name__}: {told}). Make one with `evo-kernel train policy`."
        ) from None
    return model.eval(), dict(data["about"])


def _check(path: Path, data: Mapping[str, Any]) -> None:
    if data["version"] > VERSION:
        raise UserError(f"{path} has version {data['version']}; this evo-kernel reads {VERSION}: update it.")
    words = data["words"]
    if words["features"] != list(FEATURES) or words["strategies"] != list(STRATEGIES):
        raise UserError(
            f"{path} was trained with other features or another catalogue of strategies than this evo-kernel has: "
            "train it anew with `evo-kernel train policy`."
        )


def _model(data: Mapping[str, Any]) -> Scorer:
    settings = dict(data["settings"])
    seen = Seen(**settings.pop("seen"))
    if data["kind"] == Network.kind:
        return Network(NetworkSettings(**settings, seen=seen))
    if data["kind"] == LanguagePolicy.kind:
        return LanguagePolicy(LanguageSettings(**settings, seen=seen))
    raise ValueError(f"its kind is {data['kind']!r}")
