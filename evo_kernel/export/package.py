"""Champions as an importable Python package that needs torch alone: their recorded launches, no host code of theirs.

pyproject.toml, README.md, LICENSE-NOTE.md
NAME/               __init__.py; what shipped/ holds: choice of a kernel, operator, autograd, verify, bench
    manifest.json   operator, cases that were judged, files with their hashes
    provenance.json what was judged where, with every diff since the root
    kernels/        programs: recorded launches of machine code, and all of a kernel that is ever executed
    sources/        what they were recorded from, for people: nothing imports it
    tasks/ plans/ _helpers/
tests/              the package's own
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evo_kernel.errors import UserError
from evo_kernel.export.standalone import SHIPPED, TENSOR_MAPS
from evo_kernel.types import CaseKind, Source, escaped

RUNTIME = ("_launch.py", "_layouts.py", "_task.py", "_op.py", "verify.py", "bench.py")
OWN = {"OPERATOR", "chosen", "reference", "strict", "_helpers", "_tensor_map_bytes", *(p[:-3] for p in RUNTIME)}
"""What a package holds beside its operator."""
TAKEN = {"torch", "triton", "numpy", "tests", "evo_kernel", "setuptools", "aten", "prim", "prims"}
"""Names of packages that would hide others, and namespaces of PyTorch's own operators."""
LICENSE_NOTE = """# Whose is this?
The kernels in {name}/kernels and {name}/sources were written by a search: by the program evo-kernel, and by language
models where the lineage in {name}/provenance.json names any. They descend from a root and the task file of
whoever ran the search, who decides on their licence: none is granted by this file. Terms of the models' providers may
apply.

The rest of the package (all but kernels/, sources/, tasks/ and plans/) comes with evo-kernel, under the Apache License
2.0: https://www.apache.org/licenses/LICENSE-2.0
"""


@dataclass(frozen=True)
class Package:
    """What is exported."""

    name: str  # of the package
    operator: str  # of the operator and the function
    description: str
    manifest: Mapping[str, Any]  # see shipped/_op.py
    kernels: Mapping[str, Mapping[str, Any]]  # programs by name, see evo_kernel/fitness/plan/program.py
    sources: Mapping[str, Source]  # what each was recorded from, with the chosen knobs written in
    tasks: Mapping[str, str]  # NAME/task.py of every task, and what lies beside it, by path
    helpers: Mapping[str, str]  # modules of evo-kernel that task files import, by name
    plans: Mapping[str, str]  # plan files' texts by name
    provenance: Sequence[Mapping[str, Any]]  # one of each kernel

    @property
    def served(self) -> list[str]:
        """Cases whose sizes its kernels answer."""
        return list(dict.fromkeys(case["name"] for group in self.manifest["judged"] for case in group["cases"]))

    @property
    def not_served(self) -> list[str]:
        """Cases that the reference answers: outputs were not compared in full on them, or nothing was judged there."""
        return [*self.manifest["not_executed"], *self.manifest["not_judged"]]

    @property
    def not_confirmed(self) -> list[str]:
        """Kernels that a confirmation refuted, or that had none."""
        return [one["kernel"] for one in self.provenance if not one["confirmed"]]


def checked_name(name: str) -> str:
    """A name that Python can import, and that nothing else has which the package needs. Raises UserError."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise UserError(f"{name!r} cannot be imported: give a name of letters, digits and _, such as fast_softmax")
    if name in TAKEN or name in sys.stdlib_module_names:
        raise UserError(f"{name!r} is the name of something that a package needs: give another, such as fast_softmax")
    return name


def operator_name(task: str) -> str:
    """Of the operator and its function: the task's, where the package has nothing else of that name."""
    name = identifier(task)
    return f"{name}_op" if name in OWN else name


def identifier(text: str) -> str:
    """The nearest name that Python can import."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if not name[:1].isidentifier() or keyword.iskeyword(name) else name


def write_package(package: Package, folder: Path) -> list[Path]:
    """Write the folder; returns what was written. Raises UserError where it holds anything."""
    name = package.name
    files = {f"{name}/{path}": text for path, text in _module_files(package).items()} | {
        "pyproject.toml": _pyproject(package),
        "README.md": readme(package.name, package.operator, package.manifest, package.provenance),
        "LICENSE-NOTE.md": LICENSE_NOTE.format(name=name),
        "tests/test_package.py": _tests(package),
    }
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; name a new folder")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in files]


def _module_files(package: Package) -> dict[str, str]:
    """The importable part: text by path within the package."""
    files = {
        **{path: (SHIPPED / path).read_text(encoding="utf-8") for path in RUNTIME},
        "__init__.py": _init(package),
        "provenance.json": json.dumps(package.provenance, indent=1) + "\n",
        "_tensor_map_bytes.py": TENSOR_MAPS.read_text(encoding="utf-8"),
        **{f"kernels/{name}.json": json.dumps(program) + "\n" for name, program in package.kernels.items()},
        **{f"sources/{name}.txt": source.text for name, source in package.sources.items()},
        **{f"tasks/{path}": text for path, text in package.tasks.items()},
        **{f"plans/{name}.plan": text for name, text in package.plans.items()},
    }
    if package.helpers:
        files["_helpers/__init__.py"] = '"""What the task files take from evo-kernel."""\n'
        local = {name: text.replace("from evo_kernel.tasks import", "from . import") for name, text in
                 package.helpers.items()}  # fmt: skip
        files |= {f"_helpers/{name}.py": text for name, text in local.items()}
    hashes = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in sorted(files.items())}
    manifest = {**package.manifest, "not_confirmed": package.not_confirmed, "files": hashes}
    return files | {"manifest.json": json.dumps(manifest, indent=1) + "\n"}


def _init(package: Package) -> str:
    name = package.operator
    unsure = f"\nNOT CONFIRMED: {', '.join(package.not_confirmed)}.\n" if package.not_confirmed else ""
    about = escaped(package.description).replace("\\", "\\\\").replace('"""', "'''").rstrip('"')
    return (
        f'"""{about}\n\n'
        f"`{name}` takes what the task's reference takes. It goes to a kernel that a search found where that\n"
        "was judged on such inputs, to the reference anywhere else, with one warning. README.md says more.\n"
        f"{unsure}"
        '"""\n\n'
        "from ._op import OP as OPERATOR\n"
        "from ._op import chosen, reference, strict\n\n\n"
        f"def {name}(*inputs):\n"
        '    """The operator, by kernels that were judged or by the reference: `chosen` says which."""\n'
        "    return OPERATOR(*inputs)\n\n\n"
        f'__all__ = ["OPERATOR", "chosen", "reference", "strict", "{name}"]\n'
    )


def _tests(package: Package) -> str:
    text = (SHIPPED / "test_package.txt").read_text(encoding="utf-8")
    return re.sub(r"\bPACKAGE\b", package.name, text)


def _pyproject(package: Package) -> str:
    torch_version = min(one["evaluation"]["environment"]["torch"] for one in package.provenance)
    return f"""[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{package.name.replace("_", "-").strip("-") or "kernel"}"
version = "{_version(package)}"
description = {_quoted(package.description[:200])}
readme = "README.md"
requires-python = ">=3.11"
# Judged with torch {_quoted(torch_version)}. Kernels are machine code: Triton is not needed.
dependencies = ["torch"]

[tool.setuptools]
packages = {json.dumps([package.name, *([f"{package.name}._helpers"] if package.helpers else [])])}
include-package-data = false
[tool.setuptools.package-data]
"{package.name}" = ["*.json", "kernels/*.json", "sources/*.txt", "tasks/**/*", "plans/*.plan"]
"""


def _quoted(text: str) -> str:
    """One line, as TOML has strings: it knows no surrogates, in pairs or not."""
    return json.dumps(escaped(" ".join(text.split())), ensure_ascii=False)


def _version(package: Package) -> str:
    """Grows with the kernels: the champion's number, and which of its populations are in."""
    return f"0.{len(package.kernels)}.{max(one['candidate'] for one in package.provenance)}"


def readme(name: str, operator: str, manifest: Mapping[str, Any], provenance: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True
    )  # no markup is escaped: this is Markdown
    return templates.get_template("readme.md.jinja").render(
        name=name,
        operator=operator,
        manifest=manifest,
        provenance=provenance,
        names=", ".join(manifest["names"]),
        gradients=", ".join(manifest["names"][place] for place in manifest["differentiable"]),
        groups=[*manifest["judged"], *(manifest["backward"]["judged"] if manifest["backward"] else [])],
    )


Number = int | float | bool


@dataclass(frozen=True)
class Tensor:
    """A tensor of a judged case; strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...] | None:
        """Its dimensions, the slowest in memory first, where it has no gaps; row-major where that fits."""
        row_major = tuple(range(len(self.shape)))
        by_stride = tuple(sorted(row_major, key=lambda d: (-self.strides[d], d)))
        return next((order for order in (row_major, by_stride) if self.lies_in(order)), None)

    def lies_in(self, order: Sequence[int]) -> bool:
        """Whether it is dense in this order; the stride of a dimension of size 1 means nothing."""
        step = 1
        for dimension in reversed(order):
            if self.shape[dimension] > 1 and self.strides[dimension] != step:
                return False
            step *= self.shape[dimension]
        return True


@dataclass(frozen=True)
class JudgedCase:
    """A case on which a kernel was found right, and what it took there."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, Any]
    inputs: tuple[Tensor | Number, ...]
    specs: tuple[Mapping[str, Any], ...]  # the inputs as plain data, with the values that launches follow from
    outputs: tuple[Tensor, ...]  # as the kernel makes them
    kernel: str  # the fastest of those found right on it
    us: float | None = None  # None where it was not timed


def judged(cases: Iterable[JudgedCase]) -> list[dict[str, Any]]:
    """Cases as plain data, for the manifest. Of two that take the same inputs the one that was timed comes first."""
    return [
        {
            "name": case.name,
            "kind": str(case.kind),
            "sizes": dict(case.sizes),
            "inputs": [dict(spec) for spec in case.specs],
            "kernel": case.kernel,
            "us": case.us,
        }
        for case in sorted(cases, key=lambda case: case.us is None)
    ]


def argument_types(cases: Sequence[JudgedCase]) -> list[str]:
    """Types of the operator's arguments, as its schema has them: Scalar where cases differ in a number's."""
    found = []
    for column in zip(*(case.inputs for case in cases), strict=True):
        types = {"Tensor" if isinstance(value, Tensor) else type(value).__name__ for value in column}
        found.append(types.pop() if len(types) == 1 else "Scalar")
    return found


def layouts(cases: Sequence[JudgedCase]) -> list[list[int] | None]:
    """Of every output the order of its dimensions in memory where all kernels agree on one; None: row-major."""
    found: list[list[int] | None] = []
    for column in zip(*(case.outputs for case in cases), strict=True):
        orders = [tensor.order for tensor in column if tensor.order != tuple(range(len(tensor.shape)))]
        ranks = {len(tensor.shape) for tensor in column}
        fits = (order for order in orders if order and len(ranks) == 1 and all(one.lies_in(order) for one in column))
        order = next(fits, None)
        found.append(list(order) if order is not None else None)
    return found


def output_shapes(cases: Sequence[JudgedCase]) -> list[tuple[str, list[Any]]] | None:
    """(dtype, sizes) of outputs as sizes of inputs [input, dimension] or numbers; None where that cannot be said."""
    found: list[tuple[str, list[Any]]] = []
    for number, column in enumerate(zip(*(case.outputs for case in cases), strict=True)):
        if len({len(tensor.shape) for tensor in column}) > 1:
            return None
        parts: list[Any] = []
        for dimension, sizes in enumerate(zip(*(tensor.shape for tensor in column), strict=True)):
            parts.append(sizes[0] if len(set(sizes)) == 1 else _place(cases, number, dimension))
        if None in parts or len({tensor.dtype for tensor in column}) > 1:
            return None
        found.append((column[0].dtype, parts))
    return found


def _place(cases: Sequence[JudgedCase], output: int, dimension: int) -> list[int] | None:
    wanted = [case.outputs[output].shape[dimension] for case in cases]
    for place, value in enumerate(cases[0].inputs):
        for axis in range(len(value.shape) if isinstance(value, Tensor) else 0):
            got = [v.shape[axis] for case in cases if isinstance(v := case.inputs[place], Tensor)]
            if got == wanted:
                return [place, axis]
    return None
