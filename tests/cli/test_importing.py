"""`tasks import`: what it lists, what it says of each problem, and how a wrong name ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.importing import main as surveys
from evo_kernel.fitness.ir import programs
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind
from tests.support.benchmark import checkout
from tests.support.commands import evo_main


@pytest.fixture
def evo():
    """The command line in this process: (exit code, stdout, stderr). A child of its own costs seconds a call."""

    def called(*arguments: object) -> tuple[int, str, str]:
        ended = evo_main(*map(str, arguments))
        return ended.returncode, ended.stdout, ended.stderr

    return called


def test_import_lists_and_writes_and_the_benchmark_checks(evo, tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout")
    _, listed, _ = evo("tasks", "import", f"kernelbench:{root}/level1")
    assert len(listed.splitlines()) == 9 and listed.splitlines()[0].endswith("level1/1  Softmax")
    for other in ("4_No_inputs", "5_Random", "6_Bessel", "2_Loss", "7_Hinge", "8_Images", "9_Pairs"):
        (root / f"KernelBench/level1/{other}.py").unlink()
    said = CliRunner().invoke(surveys, [f"kernelbench:{root}/level1"]).stdout.splitlines()
    assert "loads; checks" in said[0] and "DOES NOT LOAD" in said[1]
    head, _, level1 = (line.strip("| ").split(" | ") for line in said[-3:])
    assert dict(zip(head, level1, strict=True)) == {
        "group": "level1", "problems": "2", "load": "1", "check": "1", "degenerate": "0",
        "first: seed": "0", "first: kernels": "1", "first: mixed": "0", "first: torch": "0", "first: none": "1",
    }  # fmt: skip
    assert evo("tasks", "import", f"kernelbench:{root}/level2/1", "--to", tmp_path / "task.py")[0] == 0
    assert evo("tasks", "show", tmp_path / "task.py")[0] == 0


def test_a_files_name_commands_no_terminal(evo, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    place = root / "KernelBench/level1/1_Softmax.py"
    place.rename(place.with_name("1_Soft\x1b[2Jmax.py"))
    code, listed, _ = evo("tasks", "import", f"kernelbench:{root}/level1")
    assert code == 0 and "\x1b" not in listed and r"\x1b[2J" in listed


def test_a_file_that_cannot_be_written_is_a_mistake(evo, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    code, _, stderr = evo("tasks", "import", f"kernelbench:{root}/level1/1", "--to", tmp_path / "no/folder.py")
    assert code == 2 and "cannot be written" in stderr
    (tmp_path / "bytes.py").write_bytes(b"\xff")
    code, _, stderr = evo("tasks", "export", f"kernelbench:{root}/level1/1", tmp_path / "bytes.py", "--to", tmp_path)
    assert code == 2 and "is not UTF-8 text" in stderr


def test_a_solution_holds_launches_and_takes_the_sizes_that_were_recorded(evo, tmp_path: Path) -> None:
    spec = f"kernelbench:{checkout(tmp_path / 'data')}/level1/1"
    task = load(spec)
    (tmp_path / "mine.py").write_text(first_kernel(task).text)
    code, said, stderr = evo("tasks", "export", spec, tmp_path / "mine.py", "--to", tmp_path / "out", "--device", "cpu")
    assert code == 0, stderr
    text = Path(said.splitlines()[0].removeprefix("wrote ")).read_text()
    names: dict = {}
    exec(text, names)
    case = task.cases_of(CaseKind.CHECK)[0]
    inputs = task.inputs(case, torch.Generator().manual_seed(1), torch.device("cpu"))
    assert programs  # executes them
    torch.testing.assert_close(names["run"](*inputs), task.outputs(*inputs)[0], atol=1e-2, rtol=1e-2)
    (tmp_path / "mine.py").write_text("def run(x):\n    return x if x.sum().item() else x * 2\n")
    code, _, stderr = evo("tasks", "export", spec, tmp_path / "mine.py", "--to", tmp_path / "two", "--device", "cpu")
    assert code == 2 and "the kernel cannot be recorded on" in stderr and len(stderr.splitlines()) == 1


SPECS = ("kernelbench:{}/level1", "kernelbench:nowhere", "tritonbench:{}", "tritonbench:nowhere/T/abs", "other:there")


@pytest.mark.parametrize("spec", SPECS)
def test_mistakes_end_with_code_2_and_one_line(evo, tmp_path: Path, spec: str) -> None:
    code, _, stderr = evo("tasks", "import", spec.format(tmp_path))
    assert code == 2 and "Traceback" not in stderr and len(stderr.splitlines()) == 1
