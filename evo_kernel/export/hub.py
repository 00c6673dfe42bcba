"""A package as a repository for Hugging Face's `kernels`: `build/torch-universal/`, without anything to compile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from evo_kernel.export.package import LICENSE_NOTE, Package, module_files, write_files
from evo_kernel.export.readme import readme

VARIANT = "build/torch-universal"
CARD = "---\ntags:\n- kernels\n- triton\n---\n"


def write_repository(package: Package, folder: Path) -> list[Path]:
    """Write the repository. Refuses a folder that holds other things. Returns what was written.

    The kernel lies in the variant's folder itself; the folder in it that has the package's name gives older versions
    of `kernels` the same names.
    """
    package = replace(package, manifest={**package.manifest, "namespace": _namespace(package)})
    exported = ["OPERATOR", "chosen", "reference", "strict", package.operator]
    files = {f"{VARIANT}/{path}": text for path, text in module_files(package).items()} | {
        f"{VARIANT}/{package.name}/__init__.py": _same_names(exported),
        f"{VARIANT}/metadata.json": json.dumps({"version": 1, "python-depends": []}) + "\n",
        "README.md": CARD + readme(package.name, package.operator, package.manifest, package.provenance, VARIANT),
        "LICENSE-NOTE.md": LICENSE_NOTE.format(name=VARIANT),
    }
    return write_files(files, folder)


def _namespace(package: Package) -> str:
    """Another one for every content: several versions of a repository are loaded into one process."""
    content = json.dumps([package.kernels, package.manifest], sort_keys=True)
    return f"{package.name}_{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _same_names(names: list[str]) -> str:
    """A module with the names of the package around it, which is loaded under a name that nobody knows beforehand."""
    return f"""import importlib.util
import sys
from pathlib import Path

_home = Path(__file__).parent.parent
_name = "_kernel_" + str(abs(hash(str(_home))))
if _name not in sys.modules:
    _search = [str(_home)]
    _spec = importlib.util.spec_from_file_location(_name, _home / "__init__.py", submodule_search_locations=_search)
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
for _each in {names!r}:
    globals()[_each] = getattr(sys.modules[_name], _each)

__all__ = {names!r}
"""
