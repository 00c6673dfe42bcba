"""Checkpoints: a trained policy network with its settings, in one file that holds no code.

save(path, model, about)
model, about = load(path)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from operators.learning.network import NetworkSettings, PolicyNetwork
from operators.learning.policy_features import STRATEGIES
from operators.learning.weights import WeightsFormat
from operators.macro.features import FEATURES

FORMAT = WeightsFormat("evo-kernel policy", 1, "policy", "evo-kernel train policy")
WORDS = {"features": list(FEATURES), "strategies": list(STRATEGIES)}
SEEN = {"source": False, "history": True, "plan": True}
"""What a policy sees; earlier versions could train others."""


def save(path: Path, model: PolicyNetwork, about: Mapping[str, str | int | float | bool]) -> int:
    """Writes it at once or not at all; returns its size in bytes. `about`: how it came to be."""
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    data = {"kind": "network", "settings": asdict(model.settings), "model": weights, "words": WORDS}
    return FORMAT.write(path, {**data, "about": dict(about)})


def load(path: Path) -> tuple[PolicyNetwork, dict[str, Any]]:
    """The model, ready to score, and what is told about it. Raises UserError."""
    data = FORMAT.read(path)
    with FORMAT.described(path):
        settings: dict[str, Any] = data["settings"]
        if data["words"] != WORDS or data["kind"] != "network" or settings.get("seen", SEEN) != SEEN:
            raise UserError(
                f"{path} is a policy with other features, strategies or of another kind than this evo-kernel has: "
                f"train it anew with `{FORMAT.makes}`."
            )
        known = NetworkSettings.__dataclass_fields__.keys() & settings.keys()
        model = PolicyNetwork(NetworkSettings(**{name: settings[name] for name in known}))
        # Earlier versions stored layers for source text too, which such a policy never saw.
        model.load_state_dict({name: data["model"][name] for name in model.state_dict()})
        return model.eval(), dict(data["about"])
