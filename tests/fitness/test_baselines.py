"""What kernels are held against."""

import torch

from evo_kernel.fitness.baselines import searching
from evo_kernel.fitness.runners import cuda_worker
from evo_kernel.tasks.loading import load
from evo_kernel.types import Status


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

    class Bench(cuda_worker.Worker):
        def __init__(self):
            self.task = load("conv2d")
            self.device = type("Device", (), {"healthy": lambda self: True})()
            self.examiner = type("Examiner", (), {"timer": Timer()})()
            self._replies = (tmp_path / "replies").open("wb")

    request = {"command": "baseline", "case": "conv3", "name": "eager"}
    bench = Bench()
    assert bench.answer(request)["status"] == Status.PASSED
    assert "missing" in bench.answer(request)["reason"]
    assert seen == [(True, False)] * 2
    assert (flags.benchmark, flags.deterministic) == (False, True)
    with searching():
        assert flags.benchmark and not flags.deterministic
