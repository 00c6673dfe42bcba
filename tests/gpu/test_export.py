"""A package on the GPU that its kernels were judged on: its own tests, `verify` at full sizes, `bench`, a model compiled.

One search of a few evaluations feeds all of it. What a child says is printed where it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import evo, told

CALLED = """
import torch, softmax_kernel
x = torch.randn(4096, 4096, device="cuda")
assert softmax_kernel.chosen(x).startswith("candidate_"), softmax_kernel.chosen(x)
assert softmax_kernel.chosen(x.double()).startswith("reference: x is float64")
call = torch.compile(lambda x: softmax_kernel.softmax(x * 2.0) + 1.0, fullgraph=True)
torch.testing.assert_close(call(x), torch.softmax(x * 2.0, -1) + 1.0)
leaf = x.clone().requires_grad_()
softmax_kernel.softmax(leaf).square().sum().backward()
twin = x.clone().requires_grad_()
torch.softmax(twin, -1).square().sum().backward()
torch.testing.assert_close(leaf.grad, twin.grad)
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    softmax_kernel.softmax(x)
print("fine")
"""


def child(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the package's folder, without evo-kernel on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    budget = ["--set", "budget.evaluations=8", "--set", "judge.tune_plans=4"]
    ended = evo("run", "softmax", "--device", "cuda", "--population", folder / "softmax.db", "--json", *budget)
    assert ended.exit_code == 0, ended.output
    ended = evo("export", folder / "softmax.db", "--to", folder / "out", "--device", "cuda", "--json")
    assert ended.exit_code == 0, ended.output
    print(told(ended))
    return folder / "out"


def test_full_sizes_are_in_its_ranges(package: Path) -> None:
    manifest = json.loads((package / "softmax_kernel" / "manifest.json").read_text())
    (span,) = manifest["ranges"]
    assert manifest["not_executed"] == [] and span["environment"].startswith("measured")
    assert {case["kind"] for case in span["cases"]} == {"check", "search", "confirm"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "unittest", "discover", "-v", "tests"),
        ("-m", "softmax_kernel.verify"),
        ("-m", "softmax_kernel.bench", "--samples", "20"),
        ("-c", CALLED),
    ],
    ids=["its own tests", "verify", "bench", "called"],
)
def test_what_a_receiver_runs(package: Path, arguments: tuple[str, ...]) -> None:
    ended = child(package, *arguments)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
    assert "skipped" not in ended.stderr
