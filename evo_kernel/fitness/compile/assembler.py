"""Selects the assembler (ptxas) that turns PTX into machine code: Triton's own, a package's, or one given by path.

Versions produce code of different speed, and some have bugs that make code wrong. So the version is part of the
environment of a score.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from evo_kernel import user_cache
from evo_kernel.errors import ConfigError

BUNDLED, PACKAGE = "bundled", "package"
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
FAULTY = "12.8."
"""Versions that miscompile some correct wgmma code for sm_90, as public issues report."""
_TRITON = re.compile(r"""^__version__ = ["'](.+)["']""", re.MULTILINE)
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


@cache
def triton_version() -> str:
    """Triton's version, from its text: importing Triton takes a sixth of torch's time, and the judge needs no more."""
    told = _TRITON.search(Path(_triton_file()).read_text(encoding="utf-8"))
    return told[1] if told else metadata.version("triton")


def _triton_file() -> str:
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")
    return spec.origin


def _bundled() -> str:
    """Path of Triton's own assembler. Triton contains two; which one it uses for sm_90 depends on its version."""
    from triton.backends.nvidia.compiler import get_ptxas

    name = "ptxas-blackwell" if get_ptxas(90).path == get_ptxas(100).path else "ptxas"
    return str(Path(_triton_file()).parent / "backends" / "nvidia" / "bin" / name)


def assembler_of(choice: str) -> Assembler:
    """The assembler for `bundled`, `package`, or a path. Raises ConfigError."""
    if choice == BUNDLED:
        chosen = [os.environ.get(f"TRITON_{name}_PATH", "") for name in ("PTXAS", "PTXAS_BLACKWELL")]
        return _with_version(Path(user_cache.kept([_triton_file(), triton_version(), *chosen], "ptxas", _bundled)))
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

    def reported() -> str:
        completed = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        match = _VERSION.search(completed.stdout)
        if completed.returncode or match is None:
            raise ConfigError(f"judge.assembler: {path} is not a ptxas: it reports no version")
        return match[1]

    try:
        file = path.stat()
        return Assembler(path, user_cache.kept([str(path), file.st_size, file.st_mtime_ns], "ptxas", reported))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"judge.assembler: {path} cannot be run: {error}") from error
