"""Files of trained weights: PyTorch's format read with `weights_only`: tensors, numbers, texts; nothing that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import UserError


@dataclass(frozen=True)
class WeightsFormat:
    """`name` and `version` stand in the file; `what` it holds, for people, and the command that `makes` one."""

    name: str
    version: int
    what: str  # "policy"
    makes: str

    def write(self, path: Path, data: Mapping[str, Any]) -> int:
        """The file, whole or not at all; its size in bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        torch.save({"format": self.name, "version": self.version, **data}, part)
        part.replace(path)
        return path.stat().st_size

    def read(self, path: Path) -> dict[str, Any]:
        """Raises UserError for a file that is not there, holds something else, or is of another version."""
        with self.described(path):
            data = torch.load(path, map_location="cpu", weights_only=True)
            if data["format"] != self.name:
                raise ValueError(f"its format is {data['format']!r}")
            version = data["version"]
        if version != self.version:
            advice = "update it" if version > self.version else f"train it anew with `{self.makes}`"
            raise UserError(f"{path} has version {version}; this evo-kernel reads {self.version}: {advice}.")
        return data

    @contextmanager
    def described(self, path: Path) -> Iterator[None]:
        """What goes wrong with the contents of a file, as a UserError."""
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"{path}: the {self.what} cannot be read: {error.strerror or error}.") from None
        except Exception as error:  # noqa: BLE001 (a torn or foreign file fails in as many ways as there are bytes)
            told = str(error).partition("\n")[0][:200]
            raise UserError(
                f"{path} is no trained {self.what} ({type(error).__name__}: {told}). Make one with `{self.makes}`."
            ) from None
