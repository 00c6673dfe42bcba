"""Judges in a Ray cluster of two nodes on this machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import psutil
import pytest

from evo_kernel.app import ray_judges
from evo_kernel.errors import UserError
from evo_kernel.judge_place import judge_place, ray_address
from tests.support.commands import ROOT

NO_RAY = importlib.util.find_spec("ray") is None


@pytest.mark.slow
@pytest.mark.skipif(NO_RAY, reason="the extra [ray] is not installed")
def test_judges_are_killed_then_the_search_and_nothing_is_lost_leaked_or_left():
    command = [sys.executable, "-m", "tests.support.ray_kills", "--kills", "1", "--verdicts", "8"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as search:
        assert search.stdout is not None
        told = json.loads(search.stdout.readline())
        processes = [psutil.Process(pid) for pid in told["processes"] if psutil.pid_exists(pid)]
        assert len(processes) > 10
        search.kill()
    assert told["verdicts"] == told["passed"] == told["counted"] == told["taken"] == 8
    assert told["killed"] == 1 and told["environments"] == 1
    assert told["seeing_home"] > 4 and told["seeing_secret"] == 0
    _, alive = psutil.wait_procs(processes, 20.0)
    assert not alive


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("auto", {"a/0": "big, GPU 0", "a/1": "big, GPU 1", "c/0": "one"}),
        ("cpu", {"a/0": "big", "b/0": "bare", "c/0": "one"}),
    ],
)
def test_every_gpu_has_a_process_and_every_host_where_none_is_wanted(device, found):
    class Hosts(ray_judges.RayHosts):
        def __init__(self):
            self._device = device

        def _nodes(self):
            sizes = {"a": ("big", 32, 2), "b": ("bare", 8, 0), "c": ("one", 8, 1)}
            return [
                {"NodeID": key, "NodeManagerHostname": name, "Resources": {"CPU": cores, "GPU": cards}}
                for key, (name, cores, cards) in sizes.items()
            ]

    assert Hosts().names() == found


def test_places_are_told_apart():
    assert judge_place("ray") == "ray" and not ray_address("ray")
    assert ray_address(judge_place("ray:head.cluster:6379")) == "head.cluster:6379"
    for wrong in ("ray:", "ray:host", "ray://host:10001", "rays"):
        with pytest.raises(ValueError, match="ray:HOST:PORT"):
            judge_place(wrong)


def test_a_missing_ray_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'evo-kernel\[ray\]'"):
        ray_judges.ray_module()
    (finding,) = ray_judges.diagnose_nodes("ray:localhost:6379")
    assert finding.needed and not finding.ok and "pip install 'evo-kernel[ray]'" in finding.detail
