"""Calibration of the time model: collecting with no GPU, the files, the figures, and a fit that finds what was planted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.calibrate import main
from benchmarks.calibration import samples
from benchmarks.calibration.figures import figures, kept_share, modeled_us, spearman
from evo_kernel.fitness.costmodel.model import CONSTANTS, Constants, time_of
from evo_kernel.fitness.costmodel.targets import H200
from tests.benchmarks import made_up
from tests.support.small_tasks import small_softmax


def test_rows_survive_both_files_and_a_torn_line(tmp_path):
    made = made_up.samples(12, CONSTANTS)
    raw, packed = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.xz"
    raw.write_text("".join(samples.as_line(one) + "\n" for one in made) + samples.as_line(made[0])[:200])
    back = samples.read([raw])
    assert [one.key for one in back] == [one.key for one in made]
    assert np.allclose(modeled_us(back), modeled_us(made), 1e-4), "six digits are kept"
    samples.pack(back, packed, {"device": "none"})
    assert samples.about(packed) == {"device": "none"}
    assert sorted(samples.read([packed]), key=lambda s: s.key) == sorted(back, key=lambda s: s.key)
    assert samples.read([raw, packed]) == back  # the same plans, once


def test_packing_is_reproducible(tmp_path):
    made = made_up.samples(6, CONSTANTS)
    for order, name in ((made, "a.xz"), (made[::-1], "b.xz")):
        samples.pack(order, tmp_path / name, {})
    assert (tmp_path / "a.xz").read_bytes() == (tmp_path / "b.xz").read_bytes()


def _origin(task: str, **other: str) -> dict[str, str]:
    one = {"device": "a GPU", "torch": "2", "triton": "3", "date": "2026-11-21", "command": f"collect --tasks {task}"}
    return one | other


def test_packed_files_of_one_device_become_one(tmp_path, capsys):
    made = made_up.samples(6, CONSTANTS)
    parts = [tmp_path / "rows.xz", tmp_path / "others.xz"]
    samples.pack([one for one in made if one.task == "rows"], parts[0], _origin("rows"))
    samples.pack(made, parts[1], _origin("rows,tiles,sums"))
    whole = tmp_path / "whole.xz"
    main(["pack", *map(str, parts), "--out", str(whole)])
    assert f"{len(made)} rows" in capsys.readouterr().out  # what both hold, once
    assert {one.key for one in samples.read([whole])} == {one.key for one in made}
    assert samples.about(whole) == _origin("rows") | {
        "command": "collect --tasks rows; collect --tasks rows,tiles,sums"
    }


@pytest.mark.parametrize("other", [{"device": "another GPU"}, {"torch": "2.1"}, {"triton": "3.1"}])
def test_times_of_different_machines_are_not_packed_together(tmp_path, other):
    made = made_up.samples(3, CONSTANTS)
    parts, whole = [tmp_path / "here.xz", tmp_path / "there.xz"], tmp_path / "whole.xz"
    samples.pack(made[:4], parts[0], _origin("rows"))
    samples.pack(made[4:], parts[1], _origin("rows", **other))
    with pytest.raises(SystemExit, match="different devices or versions"):
        main(["pack", *map(str, parts), "--out", str(whole)])
    assert not whole.exists()


def test_what_is_not_packed_has_no_origin_to_compare(tmp_path):
    raw = tmp_path / "rows.jsonl"
    raw.write_text("".join(samples.as_line(one) + "\n" for one in made_up.samples(3, CONSTANTS)))
    with pytest.raises(SystemExit, match=r"rows\.jsonl is not packed"):
        main(["pack", str(raw), "--out", str(tmp_path / "whole.xz")])


def test_rank_correlation_with_and_without_ties():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 20, 200).astype(float)
    other = values + rng.normal(0, 5, 200).round()
    stats = pytest.importorskip("scipy.stats")
    assert spearman(values, other) == pytest.approx(stats.spearmanr(values, other).statistic)
    assert spearman(values, -values) == pytest.approx(-1)
    assert np.isnan(spearman(values, np.ones(200)))


def test_the_share_kept_of_the_fastest():
    measured = np.arange(40.0)
    assert kept_share(measured, measured) == 1.0
    assert kept_share(-measured, measured) == 0.0
    swapped = measured.copy()
    swapped[[0, 39]] = swapped[[39, 0]]
    assert kept_share(swapped, measured) == 0.75


def test_figures_within_cases_do_not_count_what_a_case_alone_decides():
    made = made_up.samples(90, CONSTANTS, noise=0.0)
    own = [one for one in made if one.task == "rows"]
    exact = figures(own, modeled_us(own))
    assert (exact.within, exact.siblings, exact.factor, exact.kept) == pytest.approx((1, 1, 1, 1))
    sizes = {"case0": 1.0, "case1": 1e4, "case2": 1e8}
    own = [dataclasses.replace(one, us=one.us * sizes[one.case]) for one in own]
    rng = np.random.default_rng(0)
    blind = np.array([sizes[one.case] for one in own]) * np.exp(rng.normal(0, 0.1, len(own)))
    found = figures(own, blind)
    assert found.pooled > 0.8 and abs(found.within) < 0.35


def test_the_fit_finds_planted_constants():
    fit = pytest.importorskip("benchmarks.calibration.fit", exc_type=ImportError)
    planted = fit.disturbed(CONSTANTS, np.random.default_rng(3))
    made = made_up.samples(80, planted)
    found = fit.fitted(made)
    new = made_up.samples(60, planted, seed=9, noise=0.0)
    measured = np.array([one.us for one in new])
    before, after = (figures(new, modeled_us(new, constants)) for constants in (CONSTANTS, found))
    assert after.factor < 1.06 < before.factor
    assert after.within > max(0.99, before.within)
    assert np.quantile(np.abs(np.log(modeled_us(new, found) / measured)), 0.9) < 0.2
    for name, (low, high) in fit.BOUNDS.items():
        assert low <= getattr(found, name) <= high


def test_a_task_left_out_is_not_seen(monkeypatch):
    fit = pytest.importorskip("benchmarks.calibration.fit", exc_type=ImportError)
    made = made_up.samples(30, CONSTANTS)
    seen = []

    class Here:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, _function, parts):
            seen.extend({one.task for one in part} for part in parts)
            return [CONSTANTS for _ in parts]

    monkeypatch.setattr(fit, "ProcessPoolExecutor", Here)
    found = fit.evaluated(made)
    assert seen[0] == set(made_up.TASKS)
    assert [set(made_up.TASKS) - part for part in seen[1:]] == [{task} for task in sorted(made_up.TASKS)]
    assert found.after.keys() == found.apart.keys() == set(made_up.TASKS)


def test_collecting_without_a_gpu_goes_on_where_it_ended(tmp_path, capsys):
    out, task = tmp_path / "rows.jsonl", small_softmax(tmp_path).path.parent
    command = ["collect", "--tasks", f"no_such_task,{task}", "--device", "cpu", "--out", str(out), "--seconds", "90"]
    main([*command, "--variants", "3", "--cases-each", "1", "--threads", "2"])
    told = capsys.readouterr().out
    assert "no_such_task: failed" in told
    first = samples.read([out])
    assert 2 <= len(first) <= 3
    for one in first:
        assert one.us == pytest.approx(time_of(one.facts, H200).total_us, rel=0.01)  # programs of its own choice
    main([*command, "--variants", "5", "--cases-each", "1", "--threads", "2"])
    rows = out.read_text().splitlines()
    assert len(first) < len(rows) == len(samples.read([out]))  # nothing twice
    assert [one.key for one in samples.read([out.with_suffix(".jsonl.xz")])]


def test_every_constant_is_fitted_and_its_default_is_within_bounds():
    fit = pytest.importorskip("benchmarks.calibration.fit", exc_type=ImportError)
    assert fit.BOUNDS.keys() == {field.name for field in dataclasses.fields(Constants)}
    assert all(low <= getattr(CONSTANTS, name) <= high for name, (low, high) in fit.BOUNDS.items())
