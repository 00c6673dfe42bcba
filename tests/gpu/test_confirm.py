"""Confirmation on a real GPU: a process that served nobody, and pairs beside the first kernel and a champion."""

from __future__ import annotations

import time

from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Purpose, Rival, Source
from evo_kernel.types.promotion import refutation

QUICK = JudgeSettings(tune_plans=0, deadline_s=20.0)


def test_softmax_in_another_setting_is_confirmed():
    began, task = time.monotonic(), load("softmax")
    assert task.seed is not None
    wider = Source(task.seed.text.replace("BLOCK = 256", "BLOCK = 1024"))
    champion = Source(task.seed.text.replace("NUM_WARPS = 4", "NUM_WARPS = 2"))
    assert len({task.seed.text, wider.text, champion.text}) == 3
    runner = CudaRunner(task, 0, QUICK.deadline_s)
    with PlanJudge(task, runner, QUICK) as judge:
        judge.start()
        for source in (task.seed, wider):
            scored = judge.evaluate(source, Purpose.SCORE)
            assert scored.passed, scored.reason
        before, at = runner.info["pid"], time.monotonic()
        found = judge.evaluate(wider, Purpose.CONFIRM, against=champion)
        print(
            f"confirmed in {time.monotonic() - at:.1f} s, {found.gpu_s:.1f} s of requests; all {at - began:.1f} s before"
        )
        for one in found.comparisons:
            print(one)
        print("claimed", found.claimed, "survived", found.survived, "refutation:", refutation(found) or "none")
        assert found.passed, found.reason
        assert runner.info["pid"] != before and runner.respawns == 0
        met = {(one.against, one.kind, one.case) for one in found.comparisons}
        searched = {(Rival.FIRST, CaseKind.SEARCH, case.name) for case in task.cases_of(CaseKind.SEARCH)}
        hidden = {(rival, CaseKind.CONFIRM, case.name) for rival in Rival for case in task.cases_of(CaseKind.CONFIRM)}
        assert met == searched | hidden
        assert all(20 <= one.pairs <= 100 and one.low <= one.ratio <= one.high for one in found.comparisons)
        gain = found.gain_over(Rival.FIRST, CaseKind.SEARCH)
        assert found.claimed is not None and gain is not None
        assert abs(gain.ratio / found.claimed - 1.0) < 0.05, "pairs and the search's own times are far apart"
        itself = judge.evaluate(task.seed, Purpose.CONFIRM)
        assert itself.passed and refutation(itself) == "" and all(one.pairs == 0 for one in itself.comparisons)
