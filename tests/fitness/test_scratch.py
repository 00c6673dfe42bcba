"""Folders that nobody is to keep: gone with their process, or at the next start where that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evo_kernel import scratch
from evo_kernel.scratch import Scratch, sweep

CHILD = """
import sys
from evo_kernel.scratch import Scratch
made = Scratch("test")
(made.path / "inside").mkdir()
print(made.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    with Scratch("mine") as mine:
        assert mine.parent == tmp_path and mine.name.startswith("evo-kernel-mine-")
        strangers = [tmp_path / "evo-kernel-of-old", tmp_path / "other-folder"]  # without an owner, by another name
        for one in strangers:
            one.mkdir()
        (tmp_path / "evo-kernel-link").symlink_to(strangers[1])
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )  # fmt: skip
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        assert left.is_dir() and left.parent == tmp_path
        assert sweep(young_s=-1.0) == 0 and left.is_dir()  # its maker lives
        child.kill()
        child.communicate()
        assert sweep(young_s=60.0) == 0 and left.is_dir()  # too young to be judged
        assert sweep(young_s=-1.0) == 1 and not left.exists()
        assert mine.is_dir() and all(one.is_dir() for one in strangers)
    assert not mine.exists()


def test_the_first_one_of_a_process_clears_up(tmp_path: Path) -> None:
    dead = tmp_path / "evo-kernel-dead"
    dead.mkdir()
    (dead / scratch.OWNER).touch()
    os.utime(dead, (1.0, 1.0))
    subprocess.run(
        [sys.executable, "-c", "from evo_kernel.scratch import Scratch; Scratch().close()"],
        check=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert not dead.exists() and not list(tmp_path.iterdir())
