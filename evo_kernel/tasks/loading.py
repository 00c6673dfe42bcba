"""From what a user typed to a `Task`: a built-in name, a Python file, or a folder that holds `task.py`."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.machinery
import itertools
import re
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.builtin import builtin_names, path_of, text_of
from evo_kernel.tasks.packaged import names_function, packaged_source
from evo_kernel.tasks.task import (
    TOLERANCES,
    Case,
    Function,
    Task,
    Tolerance,
    describe,
    did_you_mean,
    line_in,
    positional_names,
)
from evo_kernel.types import CaseKind, Source

SMALL_ELEMENTS = 2_000_000
"""Search cases with at most this many input elements may stand in for missing check cases: without a GPU they
are executed whole in every regime, on a CPU."""

IMPORTERS = {
    "kernelbench": "evo_kernel.tasks.importers.kernelbench",
    "tritonbench": "evo_kernel.tasks.importers.tritonbench",
}
"""Scheme of a TASK → the module that reads that benchmark's checkout: `entries(rest)`, `text_of(entry)`."""

_IMPORTING = threading.RLock()
"""One task file runs at a time: meanwhile its folder is among those that are searched, for the whole process."""
_EXAMPLE_CASES = 'CASES = {"check": [{"n": 37}], "search": [{"n": 4096}]}'


def load(spec: str | Path) -> Task:
    """The task that `spec` names. Raises TaskError."""
    if (importer := importer_of(str(spec))) is not None:
        entry = problem_of(str(spec))
        return _Reader(entry.task, entry.path, importer.text_of(entry), entry.spec).task()
    if (name := str(spec)) in builtin_names():
        return _Reader(name, path_of(name, "task.py"), text_of(name, "task.py"), name).task()
    path = _find(str(spec))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {describe(error)}.") from error
    name = path.parent.name if path.name == "task.py" else path.stem
    return _Reader(name, path, text).task()


def importer_of(spec: str) -> Any:
    """The module that reads `SCHEME:...` from a benchmark's checkout; None for any other spelling of a task."""
    scheme = spec.partition(":")[0]
    if ":" not in spec or scheme not in IMPORTERS or Path(spec).exists():
        return None
    return importlib.import_module(IMPORTERS[scheme])


def problem_of(spec: str) -> Any:
    """The `Entry` of the one problem that SCHEME:... names. Raises TaskError where it names several, or none."""
    found = importer_of(spec).entries(spec.partition(":")[2])
    if len(found) != 1:
        example = f", such as {found[0].spec}" if found else ""
        raise TaskError(
            f"{spec} names {len(found)} problems, and a task is one: add its name{example}. "
            f"`evo-kernel tasks import {spec}` lists them."
        )
    return found[0]


def _find(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_dir():
        if (path / "task.py").is_file():
            return (path / "task.py").resolve()
        raise TaskError(f"{path} is a folder without task.py. Give a folder that holds task.py, or a Python file.")
    if path.is_file():
        return path.resolve()
    hint = did_you_mean(spec, builtin_names())
    what = f"There is no file {spec}" if path.suffix == ".py" or "/" in spec else f"There is no task {spec!r}"
    raise TaskError(f"{what}.{hint} Built in are {', '.join(builtin_names())}; or give the path of a task file.")


def _forget_helpers_of_others(folder: Path) -> None:
    """So that a task imports its own helpers, and not those of the same names beside a task that was loaded before."""
    for name in {place.stem for place in folder.iterdir()} & set(sys.modules):
        loaded = getattr(sys.modules[name], "__file__", None)
        found = importlib.machinery.PathFinder.find_spec(name)
        own = folder in Path((found and found.origin) or "").parents
        if loaded and own and folder not in Path(loaded).parents:
            for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
                del sys.modules[one]


class _Reader:
    """Reads one task file: each method takes one name of the contract from the executed module."""

    def __init__(self, name: str, path: Path, text: str, origin: str = "") -> None:
        self.name, self.path, self.text, self.origin = name, path, text, origin
        self.notes: list[str] = []
        self.module = self._execute()

    def task(self) -> Task:
        reference = self._function("reference", "def reference(x): return torch.softmax(x, -1)")
        inputs = self._function(
            "inputs",
            'def inputs(case, generator, device): return torch.randn(case["n"], generator=generator, device=device)',
        )
        task = Task(
            name=self.name,
            path=self.path,
            text=self.text,
            cases=self._cases(),
            inputs_function=inputs,
            reference_function=reference,
            baselines={"eager": reference} | self._baselines(),
            flops_function=self._optional_function("flops"),
            bytes_function=self._optional_function("bytes"),
            allow=self._choice("ALLOW", ("kernels", "mixed"), "kernels"),
            tolerance=self._tolerance(),
            host_known=self._host_known(),
            mutates=self._mutates(reference),
            seed=self._seed(),
            description=" ".join((self.module.__doc__ or "").split("\n\n")[0].split()),
            public_text=public_text(self.text),
            origin=self.origin,
            notes=tuple(self.notes),
        )
        return task if task.cases_of(CaseKind.CHECK) else self._with_check(task)

    def _execute(self) -> types.ModuleType:
        try:
            code = compile(parse_module(self.text), str(self.path), "exec")
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            message = error.msg if isinstance(error, SyntaxError) else str(error)
            raise TaskError(f"{self.path}{line}: this is not valid Python: {message}. Mend that line.") from error
        # A private name: a user's `softmax.py` must neither shadow nor be shadowed by an installed module.
        private = "_evo_kernel_task_" + hashlib.sha256(f"{self.path}\0{self.text}".encode()).hexdigest()[:16]
        module = types.ModuleType(private)
        module.__file__ = str(self.path)
        with _IMPORTING:
            sys.modules[private] = module
            sys.path.append(str(self.path.parent))  # last: helpers beside the file import, installed packages win
            _forget_helpers_of_others(self.path.parent)
            try:
                exec(code, module.__dict__)
            except (Exception, SystemExit) as error:  # a user's file may raise anything: all of it is theirs to mend
                del sys.modules[private]
                line = line_in(self.path, error)
                raise TaskError(f"{self.path}{line}: running the task file failed: {describe(error)}") from error
            finally:
                sys.path.remove(str(self.path.parent))
        return module

    def _fail(self, what: str) -> TaskError:
        return TaskError(f"{self.path}: {what}")

    def _function(self, name: str, example: str) -> Function:
        if not hasattr(self.module, name):
            near = difflib.get_close_matches(name, [key for key in vars(self.module) if not key.startswith("_")], n=1)
            hint = f" (there is a {near[0]!r}: did you mean that?)" if near else ""
            raise self._fail(f"a task needs a function `{name}`{hint}. Add, for example: {example}")
        function = getattr(self.module, name)
        if not callable(function):
            raise self._fail(f"`{name}` is a {type(function).__name__}. Make it a function, for example: {example}")
        return function

    def _optional_function(self, name: str) -> Function | None:
        return self._function(name, f"def {name}(case): ...") if name in vars(self.module) else None

    def _cases(self) -> tuple[Case, ...]:
        raw = getattr(self.module, "CASES", None)
        if isinstance(raw, (list, tuple)):
            raw = {"search": raw}
        if not isinstance(raw, Mapping):
            found = "has no CASES" if raw is None else f"has CASES of type {type(raw).__name__}"
            raise self._fail(f"the file {found}. Write for example: {_EXAMPLE_CASES}")
        kinds = [kind.value for kind in CaseKind]
        for kind in set(raw) - set(kinds):
            hint = did_you_mean(str(kind), kinds)
            raise self._fail(f"CASES has a kind {kind!r}; kinds are check, search and confirm.{hint}")
        if not raw.get("search"):
            raise self._fail(f"CASES has no search cases: they steer the search. Write for example: {_EXAMPLE_CASES}")
        taken: set[str] = set()
        cases = [case for kind in CaseKind for case in self._of_kind(kind, raw.get(kind.value, ()), taken)]
        if not raw.get("confirm"):
            self.notes.append("No confirm cases: champions are confirmed on the search cases with fresh seeds.")
            search = [case for case in cases if case.kind is CaseKind.SEARCH]
            cases += [Case(f"confirm-{case.name}", CaseKind.CONFIRM, case.sizes) for case in search]
        return tuple(cases)

    def _of_kind(self, kind: CaseKind, raw: object, taken: set[str]) -> list[Case]:
        """The cases of one kind from a list of dicts, or a dict of them by name."""
        if isinstance(raw, Mapping):
            if raw and not any(isinstance(value, Mapping) for value in raw.values()):
                raise self._fail(f"CASES[{kind.value!r}] is one dict of sizes. Wrap it in a list: [{dict(raw)!r}]")
            entries = [{"name": name, **value} if isinstance(value, Mapping) else value for name, value in raw.items()]
        elif isinstance(raw, Sequence) and not isinstance(raw, str):
            entries = list(raw)
        else:
            raise self._fail(f"CASES[{kind.value!r}] is a {type(raw).__name__}. Make it a list of dicts of sizes.")
        for entry in entries:
            if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
                example = 'Make it a dict of sizes, such as {"n": 64}.'
                raise self._fail(f"CASES[{kind.value!r}] holds {entry!r}. {example}")
        named = [(entry.get("name"), {k: v for k, v in entry.items() if k != "name"}) for entry in entries]
        return [Case(self._case_name(kind, name, sizes, taken), kind, sizes) for name, sizes in named]

    def _case_name(self, kind: CaseKind, given: object, sizes: Mapping[str, Any], taken: set[str]) -> str:
        """The given name, or one made of the sizes; unique within the task."""
        told = str(given or "-".join(f"{key}{value}" for key, value in sizes.items()) or kind.value)
        base = name = re.sub(r"[/\\\x00-\x1f]", "_", told)  # files are named by it
        if given is not None and name in taken:
            raise self._fail(f"two cases are named {name!r}. Give each its own name.")
        numbers = itertools.count(2)
        while name in taken:
            name = f"{base}-{next(numbers)}"
        taken.add(name)
        return name

    def _with_check(self, task: Task) -> Task:
        """The task with its small search cases as check cases too. Raises TaskError when they are large."""
        searched = task.cases_of(CaseKind.SEARCH)
        small = [
            Case(f"check-{case.name}", CaseKind.CHECK, case.sizes)
            for case in searched
            if task.elements(case) <= SMALL_ELEMENTS
        ]
        if not small:
            sizes = {n: min(value, 67) if type(value) is int else value for n, value in searched[0].sizes.items()}
            raise self._fail(
                f"CASES has no check cases, and its search cases are too large to check without a GPU (more than "
                f'{SMALL_ELEMENTS:,} input elements). Add small ones with odd sizes: CASES["check"] = [{sizes!r}]'
            )
        note = "No check cases: the small search cases are checked instead; odd sizes would find more mistakes."
        return replace(task, cases=(*small, *task.cases), notes=(*task.notes, note))

    def _baselines(self) -> dict[str, Function]:
        raw = getattr(self.module, "BASELINES", {})
        if callable(raw):
            raw = {getattr(raw, "__name__", "baseline"): raw}
        if not isinstance(raw, Mapping) or not all(callable(function) for function in raw.values()):
            raise self._fail('BASELINES must be a dict of functions, such as {"vendor": torch.softmax}.')
        return {str(name): function for name, function in raw.items()}

    def _choice(self, name: str, choices: tuple[str, ...], default: str) -> Any:
        value = getattr(self.module, name, default)
        if value not in choices:
            raise self._fail(f"{name} is {value!r}. Choose {' or '.join(repr(choice) for choice in choices)}.")
        return value

    def _tolerance(self) -> Tolerance:
        raw = getattr(self.module, "TOLERANCE", "default")
        precision = {"precision": self._choice("PRECISION", ("ieee", "tf32"), "ieee")}
        if isinstance(raw, Tolerance):
            return raw
        if isinstance(raw, str):
            if raw not in TOLERANCES:
                raise self._fail(f"TOLERANCE is {raw!r}. Named ones are {', '.join(TOLERANCES)}; or give a dict.")
            return replace(TOLERANCES[raw], **precision)
        fields = vars(Tolerance())
        if not isinstance(raw, Mapping):
            raise self._fail(f"TOLERANCE is a {type(raw).__name__}. Make it a name or a dict of {', '.join(fields)}.")
        for key, value in raw.items():
            if key not in fields:
                hint = did_you_mean(str(key), fields)
                raise self._fail(f"TOLERANCE has an unknown key {key!r}; keys are {', '.join(fields)}.{hint}")
            if key == "precision" and value not in ("ieee", "tf32"):
                raise self._fail(f"TOLERANCE['precision'] is {value!r}. Choose 'ieee' or 'tf32'.")
            if key != "precision" and not (isinstance(value, (int, float)) and value >= 0):
                raise self._fail(f"TOLERANCE[{key!r}] is {value!r}. Give a number that is not negative.")
        return Tolerance(**(precision | dict(raw)))

    def _host_known(self) -> frozenset[int]:
        raw = getattr(self.module, "HOST_KNOWN", ())
        if not isinstance(raw, (list, tuple, set, frozenset)) or not all(type(item) is int for item in raw):
            raise self._fail(f"HOST_KNOWN is {raw!r}. Make it a set of input positions, such as {{2}}.")
        return frozenset(raw)

    def _mutates(self, reference: Function) -> tuple[int, ...]:
        raw = getattr(self.module, "MUTATES", ())
        names = positional_names(reference)
        if isinstance(raw, str) or not isinstance(raw, (list, tuple, set, frozenset)):
            example = f'MUTATES = ("{names[0] if names else "x"}",)'
            raise self._fail(f"MUTATES is {raw!r}. Make it a tuple of parameters of reference, such as {example}.")
        for item in raw:
            if item not in names:
                hint = did_you_mean(str(item), names)
                raise self._fail(f"MUTATES names {item!r}; the parameters of reference are {', '.join(names)}.{hint}")
        if both := sorted(self._host_known() & {names.index(item) for item in raw}):
            raise self._fail(
                f"HOST_KNOWN and MUTATES both name input {both[0]} ({names[both[0]]}). The host must know "
                "a value that stays: take it out of one of them."
            )
        return tuple(sorted(names.index(item) for item in set(raw)))

    def _seed(self) -> Source | None:
        raw = getattr(self.module, "SEED", None)
        if raw is None:
            return None
        if not isinstance(raw, (str, Path)):
            raise self._fail(f"SEED is a {type(raw).__name__}. Make it a path relative to this file.")
        if isinstance(raw, str) and "\n" in raw:
            return Source(raw)  # the text itself: an imported problem brings its own
        if names_function(str(raw)):
            return packaged_source(str(raw))
        try:
            if self.origin in builtin_names():
                return Source(text_of(self.origin, str(raw)))
            return Source((self.path.parent / raw).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise self._fail(f"SEED {str(raw)!r} cannot be read ({describe(error)}). Mend the path.") from error


_KIND = "confirm"


def public_text(text: str) -> str:
    """`text` with the values of confirm cases emptied.

    `CASES = {..., "confirm": VALUE}` (or `dict(..., confirm=VALUE)`) loses VALUE; any other module-level statement
    outside functions that names the kind is left out whole.
    """
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    spans: list[tuple[int, int, int, int, bytes]] = []
    for statement in parse_module(text).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            continue
        if not _mentions(statement):
            continue
        values = _hidden_values(getattr(statement, "value", None))
        nodes: list[ast.expr | ast.stmt] = [*values] or [statement]
        spans += [(*_span(node), b"[]" if values else b"pass") for node in nodes]
    for first, start, last, end, filler in sorted(spans, reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + filler + tail]
    return b"".join(lines).decode()


def _mentions(statement: ast.stmt) -> bool:
    """Whether the statement names the kind: as a string (but a docstring may), or as a keyword."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    return any(_KIND in (getattr(node, "value", None), getattr(node, "arg", None)) for node in ast.walk(statement))


def _hidden_values(value: ast.expr | None) -> list[ast.expr]:
    """The expressions that hold the confirm cases; empty where they cannot be told from the rest."""
    match value:
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return [item for key, item in pairs if isinstance(key, ast.Constant) and key.value == _KIND]
        case ast.Call(keywords=keywords):
            return [keyword.value for keyword in keywords if keyword.arg == _KIND]
    return []


def _span(node: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
    """First line, first byte, last line, end byte; lines from 0."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno - 1, node.col_offset, node.end_lineno - 1, node.end_col_offset
