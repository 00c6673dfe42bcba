"""What kernels are held against."""

import torch

from evo_kernel.fitness.plan.torch_operations import searching
from evo_kernel.fitness.runners import cuda_worker
from evo_kernel.fitness.timing.baselines import COMPILED, baseline_function
from evo_kernel.tasks.loading import load
from evo_kernel.types import Status
from tests.support.benchmark import checkout


def test_a_benchmarks_module_is_compiled_whole_and_once_for_all_weights(tmp_path, monkeypatch):
    graphs = []

    def counted(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: real(function, backend=counted, **how))
    task = load(f"kernelbench:{checkout(tmp_path / 'checkout')}/level2/1")
    function = baseline_function(task, COMPILED)
    case = next(one for one in task.cases if one.name == "small")
    for seed in range(3):
        inputs = task.inputs(case, torch.Generator().manual_seed(seed), "cpu")
        with torch.no_grad():
            assert torch.equal(function(*inputs), task.reference_function(*inputs))
    assert len(graphs) == 1 and len(graphs[0]) > 1


def test_baselines_run_while_cudnn_searches_and_references_do_not(monkeypatch, tmp_path):
    flags = torch.backends.cudnn
    monkeypatch.setattr(flags, "deterministic", True)  # as the worker's process sets it for references
    monkeypatch.setattr(flags, "benchmark", False)
    seen = []

    class Timer:
        def time_function(self, case, function, settings):
            seen.append((flags.benchmark, flags.deterministic))
            if len(seen) == 2:
                raise RuntimeError("this vendor path is missing")
            return {"status": Status.PASSED}

    class Bench(cuda_worker.GpuWorker):
        def __init__(self):
            self.task = load("conv2d")
            self.device = type("Device", (), {"healthy": lambda self: True})()
            state = type("WorkerState", (), {"forget": lambda self: None})()
            self.handler = type("RequestHandler", (), {"timer": Timer(), "state": state})()
            self._replies = (tmp_path / "replies").open("wb")

    request = {"command": "baseline", "case": "conv3", "name": "eager"}
    bench = Bench()
    assert bench.answer(request)["status"] == Status.PASSED
    assert "missing" in bench.answer(request)["reason"]
    assert seen == [(True, False)] * 2
    assert (flags.benchmark, flags.deterministic) == (False, True)
    with searching(deterministic=True):
        assert flags.benchmark and flags.deterministic
