"""The corpus before the real judge: no cheat is ever scored, no honest kernel is ever refused.

Without a GPU it is the judge that executes Triton IR, and files that only a GPU can decide are skipped; with one it is the
measuring judge. `python -m pytest tests/integrity -k NAME -s` shows what the judge said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

import pytest

from evo_kernel.tasks.probe import probe
from evo_kernel.types import Evaluation, Status
from tests.integrity.corpus import HERE, Entry, entries, load_task
from tests.integrity.judging import Court, Outcome, device

NO_GAIN = {"cpu": 1.03, "cuda": 1.08}  # what the scores of equal kernels may differ by; measured ones have noise twice
MODELED = {10, 62}  # rows about the time model: a right kernel that is measured to be faster is faster
CHEATS, HONEST = entries("cheats"), entries("honest")


def _cases() -> list:
    """Task by task: a judge serves one. Honest files come first: cheats are held against them."""
    by_task = sorted((*HONEST, *CHEATS), key=lambda entry: (entry.task, entry.deadline_s))
    gpu_missing = pytest.mark.skipif(device() == "cpu", reason="only a GPU can tell")
    marks = {"gpu": (pytest.mark.gpu, gpu_missing), "slow": (pytest.mark.slow,), "anywhere": ()}
    return [
        pytest.param(entry, id=entry.name, marks=(*marks[entry.where], pytest.mark.xdist_group(entry.task)))
        for entry in by_task
    ]


@pytest.fixture(scope="module")
def court(request) -> Iterator[Court]:
    """Judges what this run has selected."""
    called = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = [params["entry"] for params in called if isinstance(params.get("entry"), Entry)]
    with closing(Court(entry for entry in wanted if device() == "cuda" or entry.where != "gpu")) as court:
        yield court


@pytest.mark.parametrize("entry", _cases())
def test_no_cheat_is_scored_and_no_honest_kernel_refused(court, entry: Entry):
    outcome = court.outcome(entry)
    evaluation = outcome.evaluation
    print(f"{entry.name}: {evaluation.status}: {evaluation.reason}; score {evaluation.score}")
    (_is_not_scored if entry in CHEATS else _passes)(entry, outcome)


def _is_not_scored(entry: Entry, outcome: Outcome) -> None:
    evaluation = outcome.evaluation
    refused = device() == "cpu" and entry.says  # a GPU may not see what the executor sees
    honest = evaluation.status not in entry.ends and not refused
    if entry.twin and honest:  # it has no place in a plan: what is scored is, launch for launch, an honest kernel
        assert evaluation.status is Status.PASSED, evaluation.reason
        assert outcome.hashes and outcome.hashes == outcome.twins
        return
    if entry.rival and honest:  # it is right, and gains nothing by the cheat
        assert evaluation.status is Status.PASSED, evaluation.reason
        assert evaluation.score is not None and outcome.rival is not None
        if device() == "cuda" and set(entry.rows) <= MODELED:
            return
        assert evaluation.score <= NO_GAIN[device()] * outcome.rival, (evaluation.score, outcome.rival)
        return
    assert evaluation.score is None
    assert evaluation.status in entry.ends, f"{evaluation.status}: {evaluation.reason}"
    if device() == "cpu":  # a GPU may find something else first
        assert entry.says.lower() in evaluation.reason.lower(), evaluation.reason
    _is_a_sentence(evaluation)


def _passes(_: Entry, outcome: Outcome) -> None:
    evaluation = outcome.evaluation
    assert evaluation.status is Status.PASSED, evaluation.reason
    assert evaluation.score is not None and evaluation.score > 0 and math.isfinite(evaluation.score)
    assert evaluation.checks and all(check.passed and check.error <= 1.0 for check in evaluation.checks)


def test_the_corpus_is_whole():
    rows = {row for entry in CHEATS for row in entry.rows}
    assert set(range(1, 61)) <= rows, f"rows without a file: {sorted(set(range(1, 61)) - rows)}"
    assert len(CHEATS) >= 60
    assert len(HONEST) >= 40
    for entry in CHEATS:
        if entry.twin or entry.rival:
            assert (HERE / "honest" / f"{entry.twin or entry.rival}.py").is_file(), entry.name


def test_a_degenerate_task_is_named_when_it_is_probed():
    findings = probe(load_task("degenerate"))
    assert any("input" in finding.sentence for finding in findings), findings


@pytest.mark.parametrize(
    "name",
    sorted(
        {entry.task for entry in (*CHEATS, *HONEST)}
        - {"softmax_large", "matmul_large", "passes_large", "row_sums_large"}
        - {"sums_and_means"}  # named: norms of all elements hide the small ones
        - {"segment_means"}  # named: NaN for empty segments
    ),
)
def test_the_tasks_of_the_corpus_are_sound(name):
    assert probe(load_task(name)) == []


def _is_a_sentence(evaluation: Evaluation) -> None:
    """Words that a person can act on: no traceback, no bare type name, one short paragraph."""
    reason = evaluation.reason
    assert len(reason.split()) >= 4, reason
    assert "Traceback" not in reason and 'File "' not in reason, reason
    assert len(reason) <= 2000, reason
