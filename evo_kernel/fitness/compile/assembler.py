"""Which assembler (ptxas) turns PTX into machine code: Triton's own, a package's, or one named by its path.

Versions differ in the time and, with faults of theirs, in the right and wrong of the same PTX. So the version is part
of the environment that a score is made in.
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
"""Of these, on sm_90: wrong results of right wgmma code, as public threads report."""
_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
_ASKED_S = 20.0


@dataclass(frozen=True)
class Assembler:
    """One that answered. `version`: such as 12.8.93."""

    path: Path
    version: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes Triton take it, on any target."""
        return {"TRITON_PTXAS_PATH": str(self.path), "TRITON_PTXAS_BLACKWELL_PATH": str(self.path)}


def assembler_of(choice: str) -> Assembler:
    """`bundled`, `package`, or a path. Raises ConfigError."""
    if choice == BUNDLED:
        # Triton brings two, and its versions differ in which of them makes code for sm_90.
        name = "ptxas-blackwell" if get_ptxas(90).path == get_ptxas(100).path else "ptxas"
        return _asked(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)
    if choice != PACKAGE:
        return _asked(Path(choice).expanduser().absolute())
    if (found := _of_package()) is None:
        raise ConfigError(
            'judge.assembler = "package": no package with an assembler is installed. `pip install nvidia-cuda-nvcc`, '
            'or name the path of a ptxas, or "bundled".'
        )
    return found


def of_version(version: str) -> Assembler:
    """The one that is here of this version; Triton's own where none is. Raises ConfigError."""
    own = assembler_of(BUNDLED)
    return own if own.version == version or (other := another(own)) is None or other.version != version else other


def another(than: Assembler) -> Assembler | None:
    """One of another version that is here, for a second opinion."""
    try:
        there = [_of_package(), assembler_of(BUNDLED)]
    except ConfigError:
        return None
    return next((one for one in there if one is not None and one.version != than.version), None)


def _of_package() -> Assembler | None:
    for name in PACKAGES:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "ptxas":
                return _asked(Path(str(file.locate())))
    return None


@cache
def _asked(path: Path) -> Assembler:
    """With the version that it tells. Raises ConfigError."""
    try:
        ended = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_ASKED_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"judge.assembler: {path} cannot be run: {error}") from error
    found = _VERSION.search(ended.stdout)
    if ended.returncode or found is None:
        raise ConfigError(f"judge.assembler: {path} is no ptxas: it does not tell a version")
    return Assembler(path, found[1])
