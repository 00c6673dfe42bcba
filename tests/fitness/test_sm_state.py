"""The kernels that overwrite SM state, as the assembler of Triton's wheel compiles them: what they name, they write."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from evo_kernel.fitness.compile.instructions import disassemble
from evo_kernel.fitness.runners.sm_state_ptx import sm_text, warps_text


def code_of(text: str, folder: Path) -> str:
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.submodule_search_locations
    assembler = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "ptxas"
    source, cubin = folder / "clear.ptx", folder / "clear.cubin"
    source.write_text(text)
    subprocess.run([assembler, "-arch=sm_90a", source, "-o", cubin], check=True, capture_output=True)
    return disassemble(cubin.read_bytes())


@pytest.mark.parametrize(("text", "share"), [(sm_text(), 168), (warps_text(), 32)])
def test_all_registers_that_the_assembler_gives_are_written(text, share, tmp_path):
    code = code_of(text, tmp_path)
    written = {int(n) for n in re.findall(r"^ +/\*\w+\*/ +(?:@\S+ +)?[A-Z][\w.]* R(\d+)[, ]", code, re.MULTILINE)}
    assert written == set(range(share - 2))
    if share == 32:
        uniform = {int(n) for n in re.findall(r"\bU\w[\w.]* UR(\d+),", code)}
        assert uniform == set(range(4, 62))  # no code of this assembler has others
        assert set(re.findall(r"\bP(\d)\b", code)) == set("0123456")


def test_the_shares_end_at_different_rows_of_the_register_file():
    """16K registers for each quarter of an SM are 512 rows of a warp's 32 threads."""

    def left(share: int) -> set[int]:
        ends = range(share, 513, share)
        return {end - n for end in ends for n in (1, 2)} | set(range(ends[-1], 512))

    assert left(168) & left(32) == {510, 511}
