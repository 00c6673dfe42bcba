"""Checkpoints: a trained model with its settings, in one file that holds no code.

    save(path, model, about)
    model, about = load(path)

The file is PyTorch's own format, read with `weights_only`: tensors, numbers and texts, nothing that runs. A language
model is stored as its name and what was trained (adapters and critic), not with its base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from operators.learning.language import LanguagePolicy, LanguageSettings
from operators.learning.network import NetworkSettings, PolicyNetwork, Scorer
from operators.learning.policy_features import STRATEGIES, Seen
from operators.learning.weights import WeightsFormat
from operators.macro.features import FEATURES

FORMAT = WeightsFormat("evo-kernel policy", 1, "policy", "evo-kernel train policy")

Plain = Mapping[str, str | int | float | bool]


def save(path: Path, model: Scorer, about: Plain) -> int:
    """Writes it at once or not at all; returns its size in bytes. `about`: how it came to be, told by `show`."""
    data = {
        "kind": model.kind,
        "settings": asdict(model.settings),
        "model": {name: value.cpu() for name, value in model.stored().items()},
        "words": {"features": list(FEATURES), "strategies": list(STRATEGIES)},
        "about": dict(about),
    }
    return FORMAT.write(path, data)


def load(path: Path) -> tuple[Scorer, dict[str, Any]]:
    """The model, ready to score, and what is told about it. Raises UserError."""
    data = FORMAT.read(path)
    with FORMAT.described(path):
        words = data["words"]
        if words["features"] != list(FEATURES) or words["strategies"] != list(STRATEGIES):
            raise UserError(
                f"{path} was trained with other features or another catalogue of strategies than this evo-kernel has: "
                f"train it anew with `{FORMAT.makes}`."
            )
        model = _model(data)
        model.restore(data["model"])
        return model.eval(), dict(data["about"])


def _model(data: Mapping[str, Any]) -> Scorer:
    settings = dict(data["settings"])
    seen = Seen(**settings.pop("seen"))
    if data["kind"] == PolicyNetwork.kind:
        return PolicyNetwork(NetworkSettings(**settings, seen=seen))
    if data["kind"] == LanguagePolicy.kind:
        return LanguagePolicy(LanguageSettings(**settings, seen=seen))
    raise ValueError(f"its kind is {data['kind']!r}")
