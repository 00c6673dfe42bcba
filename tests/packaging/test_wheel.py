"""The wheel: three top-level names, shipped configurations, and no mistaking somebody else's `operators`."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's contents in a folder of their own, as an installer would lay them out."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(site: Path, cwd: Path, path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "evo_kernel.cli.main", *arguments]
    env = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_three_names_and_the_configurations(installed):
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"evo_kernel", "operators", "populations"}
    shipped = {path.name for path in (installed / "evo_kernel" / "configs").iterdir()}
    assert shipped == {path.name for path in (ROOT / "configs").iterdir()}


def test_what_the_dashboard_sends_is_in_it(installed):
    for kind in ("templates", "static"):
        shipped = {path.name for path in (installed / "evo_kernel" / "dashboard" / kind).iterdir()}
        assert shipped == {path.name for path in (ROOT / "evo_kernel" / "dashboard" / kind).iterdir()}
    assert "uPlot.LICENSE" in shipped


def test_the_notes_are_in_it(installed, tmp_path):
    done = run(installed, tmp_path, str(installed), "knowledge", "online", "softmax", "--no-api", "--k", "1")
    assert done.returncode == 0 and "evo-kernel/attention.md#online-softmax" in done.stdout, done.stderr


def test_a_decoy_in_the_working_folder_is_not_imported(installed, tmp_path):
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "__init__.py").write_text("raise SystemExit('the decoy was imported')\n")
    done = run(installed, tmp_path, str(installed), "tasks", "list")
    assert done.returncode == 0 and "softmax" in done.stdout, done.stderr


def test_a_decoy_on_the_path_is_refused_by_name(installed, tmp_path):
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "__init__.py").write_text("")
    done = run(installed, tmp_path, os.pathsep.join([str(tmp_path), str(installed)]), "tasks", "list")
    assert done.returncode == 2 and str(tmp_path / "operators") in done.stderr
