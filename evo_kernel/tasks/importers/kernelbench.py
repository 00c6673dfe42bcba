"""KernelBench (ScalingIntelligence, MIT) as tasks: `kernelbench:CHECKOUT/level1/23`, from a local checkout.

Its harness (src/kernelbench/eval.py) seeds with 42 before `get_init_inputs` and before each constructor, keeps the
module in training mode, and casts every input tensor to float32.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_module, quoted
from evo_kernel.tasks.importers.checkout import Entry, allow_of, chosen, parted, read_text, remembered, task_text
from evo_kernel.tasks.importers.shrink_sizes import ODD, WIDE, Size, constants, reduced, run_fake, telling
from evo_kernel.tasks.problems import NEEDED, Problem
from evo_kernel.tasks.task import describe, line_in

SCHEME = "kernelbench"
MIXED, TF32, IEEE = "@mixed", "@tf32", "@ieee"
"""What may end a TASK: its kernels may call PyTorch whatever its reference does; convolutions and recurrent networks of
float32 may use TF32, as PyTorch's defaults let its reference; they may not, which holds where nothing is said."""
SECOND_CASE = 1_000_000
"""Elements that the second, wider check case may touch: more is left to the GPU."""
NETWORK = 150
"""Operations of a reference above which one check case must do: finding a second takes long, as does checking it."""
TRACED_TENSORS = 48
"""Tensors of a module up to which loading tries whether its kernels alone will do; whole networks stay `mixed`."""

_EXAMPLE = "kernelbench:KernelBench/level1/23"


def entries(rest: str) -> list[Entry]:
    """The problems that `CHECKOUT`, `CHECKOUT/level1` or `CHECKOUT/level1/23` names, in order. Raises TaskError.

    Each may end with MIXED, and with TF32 or IEEE.
    """
    endings = set()
    while ending := next((one for one in (MIXED, TF32, IEEE) if rest.endswith(one)), ""):
        rest = rest.removesuffix(ending)
        endings.add(ending)
    if {TF32, IEEE} <= endings:
        raise TaskError(f"A task has one precision: {TF32} or {IEEE}.")
    root, level, problem = parted(rest, "level[^/]*")
    said = "".join(one for one in (MIXED, TF32) if one in endings)
    levels = {number: _problems(folder, number, said) for number, folder in sorted(_levels(root).items())}
    return chosen({f"level{number}": found for number, found in levels.items()}, level, problem, _EXAMPLE)


def _levels(root: Path) -> dict[int, Path]:
    """Level → folder, in a checkout or in its folder of levels."""
    for folder in (root / "KernelBench", root):
        found = {int(m[1]): path for path in folder.glob("level*") if (m := re.fullmatch(r"level(\d+)", path.name))}
        if found and any(path.glob("[0-9]*_*.py") for path in found.values()):
            return {level: path.resolve() for level, path in found.items()}
    what = "it has no folders level1, level2, ..."
    raise TaskError(f"{root} is no KernelBench checkout: {what} Name one; write for example {_EXAMPLE}.")


def _problems(folder: Path, level: int, said: str) -> list[Entry]:
    tf32 = TF32 if said.endswith(TF32) else ""
    numbered = [(int(m[1]), path) for path in folder.glob("*.py") if (m := re.match(r"(\d+)_", path.name))]
    return [
        Entry(
            spec=f"{SCHEME}:{folder.parent}/level{level}/{number}{said}",
            task=f"kernelbench_{level}_{number}{'_tf32' if tf32 else ''}",
            group=f"level{level}{tf32}",
            name=str(number),
            label=f"level{level}/{number}",
            title=path.stem.partition("_")[2].strip("_").replace("_", " "),
            path=path,
        )
        for number, path in sorted(numbered)
    ]


def level_of(entry: Entry) -> int:
    return int(entry.group.removesuffix(TF32).removeprefix("level"))


def text_of(entry: Entry) -> str:
    """Its task's text. Raises TaskError."""
    return _text(entry, read_text(entry.path))


@remembered
def _text(entry: Entry, source: str) -> str:
    """The task file. Finding its sizes takes up to some seconds."""
    own = _own_sizes(entry, source)
    cast = _castable(entry, source, own)
    problem = Problem(source, str(entry.path), cast=cast)
    checks = _check_cases(problem, own)
    allow = "mixed" if MIXED in _said(entry) else _allow(source, str(entry.path), own, checks, cast)
    cases = {
        "check": [{"name": f"small{index or ''}", **case} for index, case in enumerate(checks)],
        "search": [{"name": "own", **own}],
    }
    description = f"KernelBench level {level_of(entry)}, problem {entry.name}: {entry.title}."
    if not cast:
        description += " Inputs keep their dtypes: cast to float32, as in its harness, the problem does not run."
    sizes = (
        "\n_sizes = [{name: size for name, size in case.items() if name != 'name'} "
        "for kind in ('search', 'check') for case in CASES[kind]]"
    )
    imported = "from evo_kernel.tasks.problems import Problem"
    if TF32 in _said(entry) and _takes_tf32(problem, own):
        description += " Its float32 convolutions and recurrent networks may use TF32, as its harness's reference does."
        sizes += "\nPRECISION = 'tf32'"
    made = f"_problem = Problem(SOURCE, __file__, _sizes, cast={cast})"
    return task_text(description, imported, {"SOURCE": quoted(source)}, cases, allow, sizes, made)


def _own_sizes(entry: Entry, source: str) -> Mapping[str, Size]:
    try:
        return constants(Problem(source, str(entry.path)))
    except TaskError:
        raise
    except SyntaxError as error:
        where = f"{entry.path}:{error.lineno}"
        raise TaskError(f"{where}: this is not valid Python: {error.msg}. Check it out again.") from error
    except (Exception, SystemExit) as error:  # the problem's own code may raise anything
        line, what = line_in(entry.path, error), describe(error).rstrip(".")
        raise TaskError(
            f"{entry.path}{line}: running the problem's file failed: {what}.{_way_out(source, error)}"
        ) from error


def _way_out(source: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f" Install {error.name} for it."
    if isinstance(error, OSError) and "from_pretrained" in source:  # level 4: it is not in the cache, or no network
        return " Its model comes from a hub: put it into the local cache of that library first, and try again."
    return ""


def _castable(entry: Entry, source: str, own: Mapping[str, Size]) -> bool:
    """Whether the problem runs on inputs cast to float32; class numbers, for one, do not."""
    faults = []
    for cast in (True, False):
        try:
            run_fake(Problem(source, str(entry.path), cast=cast), own)
            return cast
        except Exception as error:  # noqa: BLE001  the problem's own code may raise anything
            faults.append(error)
    if isinstance(faults[-1], TaskError):
        raise faults[-1]
    return True  # its reference reads values: it is judged as its harness would


def _said(entry: Entry) -> str:
    """Its number and what its TASK ends with."""
    return entry.spec.rpartition("/")[2]


def _takes_tf32(problem: Problem, own: Mapping[str, Size]) -> bool:
    try:
        return run_fake(problem, own).takes_tf32
    except Exception:  # noqa: BLE001  it reads values: then its operations are not known
        return False


def _check_cases(problem: Problem, own: Mapping[str, Size]) -> list[dict[str, Size]]:
    """One or two sets of small sizes; the problem's own where nothing smaller was found."""
    cases = [telling(problem, own, reduced(problem, own, ODD))]
    if cases[0] == own or run_fake(problem, cases[0]).operations > NETWORK:
        return cases
    wide = telling(problem, own, reduced(problem, own, WIDE))
    ran = run_fake(problem, wide)
    if wide not in (*cases, own) and ran.elements + ran.work <= SECOND_CASE:
        cases.append(wide)
    return cases


def _allow(source: str, path: str, own: Any, checks: list[Any], cast: bool) -> str:
    problem = Problem(source, path, [own, *checks], cast=cast)

    def inputs() -> list[tuple[Any, ...]] | None:
        variants = [problem.variant(case) for case in checks]
        return None if len(variants[0].lifted) > TRACED_TENSORS else [variant.specs for variant in variants]

    return allow_of(problem.reference, inputs)


def places(source: str, path: Path) -> list[str]:
    """Where the module's tensors hang, dotted, in the order in which `run` gets them."""
    return [lifted.places[0] for lifted in Problem(source, str(path)).variant({}).lifted]


def skeleton(source: str) -> str:
    """The problem's file without what computes: constructors and constants, no `forward`, no docstrings.

    What its harness's static checker forbids anywhere in a solution (`pass`, `try:`) is gone with them.
    """
    tree = parse_module(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name in NEEDED)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [part for part in node.body if getattr(part, "name", "") != "forward"]
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            node.body = node.body[ast.get_docstring(node) is not None :] or [ast.Expr(ast.Constant(...))]
    return ast.unparse(ast.fix_missing_locations(tree))
