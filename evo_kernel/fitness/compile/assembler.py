"""Selects the assembler (ptxas) that turns PTX into machine code: Triton's own, a package's, or one given by path.

Versions produce code of different speed, and some have bugs that make code wrong. So the version is part of the
environment of a score.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import triton
from triton.backends.nvidia.compiler import get_ptxas

from evo_kernel.errors import ConfigError

BUNDLED, PACKAGE = "bundled", "package"
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
FAULTY = "12.8."
"""Versions that miscompile some correct wgmma code for sm_90, as public issues report."""
_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Assembler:
    """An installed assembler. `version`: such as 12.8.93."""

    path: Path
    version: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make Triton use it, for any target."""
        return {"TRITON_PTXAS_PATH": str(self.path), "TRITON_PTXAS_BLACKWELL_PATH": str(self.path)}


def assembler_of(choice: str) -> Assembler:
    """The assembler for `bundled`, `package`, or a path. Raises ConfigError."""
    if choice == BUNDLED:
        # Triton contains two; which one it uses for sm_90 depends on its version.
        name = "ptxas-blackwell" if get_ptxas(90).path == get_ptxas(100).path else "ptxas"
        return _with_version(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)
    if choice != PACKAGE:
        return _with_version(Path(choice).expanduser().absolute())
    if (package := _of_package()) is None:
        raise ConfigError(
            'judge.assembler = "package": no package with an assembler is installed. `pip install nvidia-cuda-nvcc`, '
            'or name the path of a ptxas, or "bundled".'
        )
    return package


def of_version(version: str) -> Assembler:
    """The installed assembler of this version, or Triton's own. Raises ConfigError."""
    bundled = assembler_of(BUNDLED)
    return (
        bundled
        if bundled.version == version or (other := other_version(bundled)) is None or other.version != version
        else other
    )


def other_version(than: Assembler) -> Assembler | None:
    """An installed assembler of another version, or None."""
    try:
        available = [_of_package(), assembler_of(BUNDLED)]
    except ConfigError:
        return None
    return next(
        (candidate for candidate in available if candidate is not None and candidate.version != than.version), None
    )


def _of_package() -> Assembler | None:
    for name in PACKAGES:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "ptxas":
                return _with_version(Path(str(file.locate())))
    return None


@cache
def _with_version(path: Path) -> Assembler:
    """The assembler with the version that it reports. Raises ConfigError."""
    try:
        completed = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"judge.assembler: {path} cannot be run: {error}") from error
    match = _VERSION.search(completed.stdout)
    if completed.returncode or match is None:
        raise ConfigError(f"judge.assembler: {path} is not a ptxas: it reports no version")
    return Assembler(path, match[1])
