"""What is exported, on the GPU: a package's own tests, `verify` at full sizes, `bench`, a model compiled; single files.

One search of a few evaluations feeds all of it. What a child says is printed where it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evo_kernel.app.recorded_kernels import recorded_launches
from evo_kernel.export.standalone import standalone
from evo_kernel.types import CaseKind
from tests.gpu.test_launch_kinds import _need_nvrtc
from tests.support.commands import evo, told
from tests.support.launch_kinds import KINDS

CALLED = """
import torch, softmax_kernel
x = torch.randn(4096, 4096, device="cuda")
assert softmax_kernel.chosen(x).startswith("candidate_"), softmax_kernel.chosen(x)
assert softmax_kernel.chosen(x.double()).startswith("reference: x is float64")
assert softmax_kernel.chosen(x[:4095]).startswith("reference: x is float32 (4095, 4096); judged with")
torch.testing.assert_close(softmax_kernel.softmax(x), torch.softmax(x, -1))
shifted = torch.randn(4096 * 4096 + 1, device="cuda")[1:].view(4096, 4096)
torch.testing.assert_close(softmax_kernel.softmax(shifted), torch.softmax(shifted, -1))
graph, still = torch.cuda.CUDAGraph(), x.clone()
with torch.cuda.graph(graph):
    made = softmax_kernel.softmax(still)
still.copy_(shifted)
graph.replay()
torch.testing.assert_close(made, torch.softmax(shifted, -1))
with torch.cuda.stream(torch.cuda.Stream()):
    torch.testing.assert_close(softmax_kernel.softmax(x), torch.softmax(x, -1))
call = torch.compile(lambda x: softmax_kernel.softmax(x * 2.0) + 1.0, fullgraph=True)
torch.testing.assert_close(call(x), torch.softmax(x * 2.0, -1) + 1.0)
leaf = x.clone().requires_grad_()
softmax_kernel.softmax(leaf).square().sum().backward()
twin = x.clone().requires_grad_()
torch.softmax(twin, -1).square().sum().backward()
torch.testing.assert_close(leaf.grad, twin.grad)
print("fine")
"""
ALONE = """
import sys
sys.modules["evo_kernel"] = sys.modules["triton"] = None
import torch
from one import run
inputs, wanted = torch.load("case.pt", weights_only=False)
made = run(*(value.cuda() if isinstance(value, torch.Tensor) else value for value in inputs))
for got, want in zip((made,) if isinstance(made, torch.Tensor) else made, wanted, strict=True):
    torch.testing.assert_close(got.cpu(), want, atol=2e-2, rtol=2e-2)
print("fine")
"""
COST = """
import json, time, torch, softmax_kernel
case = next(c for c in json.load(open("softmax_kernel/manifest.json"))["judged"][0]["cases"] if c["kind"] == "check")
x = torch.randn(case["inputs"][0]["shape"], device="cuda")
program = softmax_kernel._op.program(case["kernel"])
for call in (softmax_kernel.softmax, lambda x: program.run(case["name"], (x,)), lambda x: torch.softmax(x, -1)):
    for _ in range(100):
        call(x)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(1000):
        call(x)
    print(f"{(time.perf_counter() - began) * 1e3:.1f} us a call")
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


def test_full_sizes_are_among_its_cases(package: Path) -> None:
    manifest = json.loads((package / "softmax_kernel" / "manifest.json").read_text())
    (group,) = manifest["judged"]
    assert manifest["not_executed"] == manifest["not_judged"] == [] and group["environment"].startswith("measured")
    assert {case["kind"] for case in group["cases"]} == {"check", "search", "confirm"}


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


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_launch_runs_from_a_file_alone(tmp_path: Path, name: str) -> None:
    """Recorded on this GPU, written as one Python file, and held against the reference in a process without us."""
    kind = KINDS[name]
    if "CUDA C++" in name:
        _need_nvrtc()
    task = kind.load(tmp_path)
    (tmp_path / "one.py").write_text(standalone(recorded_launches(task, kind.text, "cuda"), kind.source))
    for case in task.cases_of(CaseKind.CHECK):
        inputs = task.inputs(case, torch.Generator().manual_seed(3), torch.device("cpu"))
        torch.save((inputs, task.outputs(*inputs)), tmp_path / "case.pt")
        ended = child(tmp_path, "-c", ALONE)
        print(name, case.name, ended.stdout, ended.stderr)
        assert ended.returncode == 0


def test_replay_compiles_again_and_measures(package: Path) -> None:
    plan = next((package / "softmax_kernel" / "plans").glob("*.plan"))
    ended = evo("replay", plan, "--task", "softmax", "--device", "cuda", "--json")
    found = told(ended)
    print(found)
    assert ended.exit_code == 0 and (found["status"], found["note"]) == ("passed", "")


def test_what_a_call_costs_on_the_host(package: Path) -> None:
    """µs of a call that launches one kernel on little data: the host's own time."""
    ended = child(package, "-c", COST)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
