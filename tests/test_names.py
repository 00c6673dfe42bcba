"""Names that a stranger can guess: no public class name is defined twice, and no module is called after a mood."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
APART = ("tasks/builtin", "export/shipped", "micro/guides")  # texts that are read or shipped, not imported
MOODS = {"around", "desk", "diary", "handed", "hearing", "keeper", "known", "looked", "looking", "news", "outside",
         "sight", "stock", "told", "vault", "yardsticks"}  # fmt: skip


def modules() -> list[Path]:
    found = [path for room in ("evo_kernel", "operators", "populations") for path in (ROOT / room).rglob("*.py")]
    return [path for path in found if not any(apart in path.as_posix() for apart in APART)]


def twice(paths: list[Path]) -> dict[str, list[str]]:
    """Public class names that several of these files define."""
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(path.name)
    return {name: where for name, where in defined.items() if len(where) > 1}


def test_no_public_class_name_is_defined_twice(tmp_path: Path) -> None:
    assert not twice(modules())
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("class Plan: ...\nclass _Own: ...\n")
    assert list(twice([*tmp_path.iterdir()])) == ["Plan"]


def test_no_module_is_called_after_a_mood() -> None:
    assert not [path for path in modules() if path.stem in MOODS]
