"""Completions judged for real, on the CPU: honest edits, no edits, cheats, kernels that never end."""

import dataclasses
import math

import pytest

from evo_kernel.app.train.judging import BenchSettings, PlanRewardJudge
from evo_kernel.app.train.problems import problem_task
from evo_kernel.errors import UserError
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Source, Status
from operators.learning.coder.answers import answer_text, written
from operators.learning.coder.rewards import PRESETS, Ask, RewardOutcome, RewardParts, grades, parts_of
from operators.micro.coder import RewriteCoder

TASK = "swiglu"


@pytest.fixture(scope="module")
def bench():
    with PlanRewardJudge(BenchSettings(device="cpu", deadline_s=60.0, threads=2)) as made:
        yield made


@pytest.fixture(scope="module")
def seed():
    return load(TASK).seed.text


@pytest.fixture(scope="module")
def honest(seed):
    """(strategy, child) of the rewriter."""
    coder, card = RewriteCoder(), load(TASK).card()
    strategy = next(one for one in coder.offer(Source(seed), card) if one.name == "drop-masks")
    return strategy, coder.implement(Source(seed), strategy)


def completions(seed, child):
    body = seed[seed.index("def run") :]
    delegated = seed.replace(body, "def run(*inputs):\n    return torch.nn.functional.silu(inputs[0]) * inputs[1]\n")
    return {
        "blocks": answer_text(seed, child, "Masks cost predicates."),
        "lines": written(seed, child),
        "whole": f"```python\n{child}```",
        "nothing": "I would rather drop the masks.",
        "same": f"```python\n{seed}```",
        "comment": f"```python\n{seed}# faster now\n```",
        "renamed": f"```python\n{seed.replace('swiglu_kernel', 'faster_kernel')}```",
        "wrong": f"```python\n{child.replace('NUM_WARPS = ', 'NUM_WARPS = 2 * ').replace('tl.exp(-', 'tl.exp(')}```",
        "delegated": f"```python\n{delegated}```",
        "torn": f"```python\n{child[: len(child) // 2]}",
    }


def test_each_completion_gets_what_it_earns(bench, seed, honest):
    strategy, child = honest
    said = completions(seed, child)
    parts = PRESETS["correct"]
    found = dict(zip(said, grades([Ask(TASK, seed, strategy)] * len(said), list(said.values()), bench, parts)))
    for name in ("blocks", "lines", "whole"):
        assert found[name].right and found[name].reward == parts.form + parts.valid, found[name]
        assert found[name].witnessed and found[name].gain is None  # plans are recorded; nobody timed them
    for name in ("nothing", "same", "torn"):
        assert found[name].status == "no edit" and found[name].reward == 0.0, found[name]
    for name in ("comment", "renamed"):  # edits that change no plan
        assert found[name].status == "passed" and not found[name].right and found[name].reward == parts.form
    assert found["wrong"].status == "wrong" and found["wrong"].reward == parts.form, found["wrong"]
    assert found["delegated"].status == "rejected" and found["delegated"].reward == parts.form - parts.integrity

    before = bench.judged_count
    binary = grades([Ask(TASK, seed, strategy)] * len(said), list(said.values()), bench, PRESETS["binary"])
    ones = {name for name, one in zip(said, binary) if one.reward == 1.0}
    assert ones == {"blocks", "lines", "whole", "comment", "renamed"} and {one.reward for one in binary} == {0.0, 1.0}
    assert bench.judged_count == before, "verdicts are remembered"


def test_a_kernel_that_never_ends_is_cut_off(seed):
    endless = f"```python\n{seed.replace('BLOCK = ', 'while True: pass' + chr(10) + 'BLOCK = ', 1)}```"
    parts = PRESETS["correct"]
    with PlanRewardJudge(BenchSettings(device="cpu", deadline_s=2.0)) as hasty:
        (found,) = grades([Ask(TASK, seed)], [endless], hasty, parts)
    assert found.status == "timeout" and found.reward == parts.form, found


def test_speed_and_witness_are_parts(bench, seed, honest, tmp_path):
    strategy, child = honest
    task, text = tmp_path / "small.py", load(TASK).text
    task.write_text(text.replace('{"m": 4096, "n": 11008}', '{"m": 256, "n": 1408}'))
    (tmp_path / "seed.py").write_text(seed)
    ask = Ask(f"{task}@m256-n1408", seed, strategy)
    other = dataclasses.replace(ask, strategy=dataclasses.replace(strategy, name="persistent"))
    parts = RewardParts(speed=1.0, witness=0.25)
    asked, unasked = grades([ask, other], [written(seed, child)] * 2, bench, parts)
    assert asked.right and asked.witnessed and not unasked.witnessed
    assert asked.gain is not None and math.isfinite(asked.gain)
    assert asked.reward == pytest.approx(parts.form + parts.valid + 0.25 + asked.gain)
    assert unasked.reward == pytest.approx(asked.reward - 0.25)


class Broken:
    """A bench whose machine fails, or that says what it is told."""

    def __init__(self, outcome):
        self.outcome = outcome

    def judged(self, kernels, timed):
        return [self.outcome] * len(kernels)


def test_what_the_machine_could_not_judge_has_no_reward(seed, honest):
    (found,) = grades([Ask(TASK, seed)], [written(seed, honest[1])], Broken(RewardOutcome(None)), PRESETS["full"])
    assert math.isnan(found.reward) and not found.right


def test_a_judge_that_dies_is_opened_anew(bench, seed, honest):
    bench.judged([(TASK, Source(honest[1] + "\nOPEN = 1\n"))], timed=False)
    bench.judges[TASK].close()
    changed = Source(honest[1] + "\nANEW = 1\n")
    (found,) = bench.judged([(TASK, changed)], timed=False)
    assert found.evaluation.status is Status.PASSED and found.is_triton


def test_a_batch_that_takes_too_long_is_not_judged(seed, honest):
    with PlanRewardJudge(BenchSettings(device="cpu", batch_s=0.0)) as late:
        (found,) = grades([Ask(TASK, seed)], [written(seed, honest[1])], late, PRESETS["correct"])
    assert math.isnan(found.reward) and found.status == "not judged"


def test_parts_are_named_and_switched():
    parts = parts_of("full", {"speed": "0", "witness": "0", "is_triton": "false"})
    assert parts == RewardParts(speed=0.0, witness=0.0, is_triton=False)
    for changes, says in (({"sped": "1"}, "no part 'sped'"), ({"speed": "x"}, "a number"), ({"changed": "1"}, "true")):
        with pytest.raises(UserError, match=says):
            parts_of("full", changes)
    with pytest.raises(UserError, match="unknown reward"):
        parts_of("fast")


def test_a_problem_is_a_task_narrowed_to_a_case():
    whole = load(TASK)
    name = whole.cases_of(CaseKind.SEARCH)[0].name
    narrow = problem_task(f"{TASK}@{name}")
    assert [one.name for one in narrow.cases_of(CaseKind.SEARCH)] == [name]
    assert narrow.cases_of(CaseKind.CHECK) == whole.cases_of(CaseKind.CHECK)
    with pytest.raises(UserError, match="no search case"):
        problem_task(f"{TASK}@nowhere")
