"""The configuration of a run: a file, `--set`, and what other options name. Imports nothing slow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.budget import NAMES, Spent
from evo_kernel.config import Config, config_from, load_config, with_overrides
from evo_kernel.deadline import seconds_of
from evo_kernel.errors import ConfigError


@dataclass(frozen=True)
class ModelOptions:
    """Language models as the command line names them."""

    names: tuple[str, ...] = ()  # PROVIDER/NAME
    base_url: str | None = None
    api_key_env: str | None = None

    def put_into(self, config: Config) -> Config:
        """The configuration with these models in place of its own. Raises ConfigError."""
        if not self.names:
            if self.base_url or self.api_key_env:
                raise ConfigError(
                    "--base-url and --api-key-env say where a --model is: name one, or use [models.main]."
                )
            return config
        where = {"base_url": self.base_url, "api_key_env": self.api_key_env}
        configured = {one.name: one.model_dump() for one in config.models.values()}
        keys = ["main", *self.names[1:]]  # so that one model is [models.main], as in a configuration
        named = {
            key: {**configured.get(name, {"name": name}), **{key: value for key, value in where.items() if value}}
            for key, name in zip(keys, self.names, strict=True)
        }
        return config_from({**config.model_dump(mode="json"), "models": named}, "--model")


def run_config(
    config_file: Path | None,
    overrides: Sequence[str],
    named: Mapping[str, Any],
    models: ModelOptions = ModelOptions(),
) -> Config:
    """Of a new run. `named`: keys that options set; None leaves what the file says. Raises ConfigError.

    Without a file it is a shipped one: agents.toml where a model is asked, else quickstart.toml.
    """
    shipped = Path("configs/agents.toml" if models.names else "configs/quickstart.toml")
    late = [one for one in overrides if models.names and one.startswith("models.")]  # on top of --model
    config = load_config(config_file or shipped, [one for one in overrides if one not in late])
    config = with_overrides(models.put_into(config), late)
    return config.model_copy(update={key: value for key, value in named.items() if value is not None})


def with_duration(config: Config, hours: float | None, overrides: Sequence[str], spent_hours: float = 0.0) -> Config:
    """A configuration whose run ends after `hours` (None: as before), and not by a number of evaluations, unless
    `overrides` set one. Raises ConfigError."""
    if hours is None:
        return config
    set_keys = {override.partition("=")[0].strip() for override in overrides}
    if "budget.hours" in set_keys:
        raise ConfigError("--for and --set budget.hours both say how long; use one of them.")
    limits: dict[str, Any] = {"hours": spent_hours + hours}
    if "budget.evaluations" not in set_keys:
        limits["evaluations"] = None
    return config.model_copy(update={"budget": config.budget.model_copy(update=limits)})


def with_additions(overrides: Sequence[str], spent: Spent) -> list[str]:
    """Overrides of a resumed run, where `budget.KEY=+N` allows N more than was spent so far. Raises ConfigError."""
    return [_ADDITION.sub(lambda addition: _total(addition, spent), override) for override in overrides]


_ADDITION = re.compile(rf"budget\.({'|'.join(NAMES)})=\+(.+)")


def _total(addition: re.Match[str], spent: Spent) -> str:
    name, more = addition.groups()
    try:
        if name == "hours" and more[-1:].isalpha():
            more = f"{seconds_of(more) / 3600!r}"
        return f"budget.{name}={getattr(spent, name) + (float(more) if '.' in more else int(more))}"
    except ValueError:
        raise ConfigError(f"--set {addition.group()}: write it like budget.{name}=+2") from None
