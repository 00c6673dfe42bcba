"""status, show and tree on a file that a real search wrote; errors as sentences; a fast start."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.app.export_selection import overtaken
from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine
from evo_kernel.types import (
    CaseKind,
    Environment,
    Evaluation,
    PairedComparison,
    PlanFeatures,
    Proposal,
    Purpose,
    Rival,
    Source,
    Strategy,
)
from populations.population import open_population
from tests.support.commands import ROOT, child, evo_process
from tests.support.commands import evo_main as evo
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, ScriptedOperator, scored

SLOW = {"torch", "triton", "litellm", "networkx", "libcst", "pydantic", "numpy", "sqlite_utils"}


GPU = replace(ENVIRONMENT, kind="measured", device="NVIDIA H200")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return search(tmp_path_factory.mktemp("look") / "scripted.db", ENVIRONMENT)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return search(tmp_path_factory.mktemp("look") / "measured.db", GPU)


def search(path: Path, environment: Environment) -> Path:
    def judge(source: Source, purpose: Purpose, number: int) -> Evaluation:
        return replace(judged(source, purpose, number), environment=environment)

    with open_population(path, task=CARD, task_identity=TASK, environment=environment, seed=1) as population:
        population.plant(FIRST)
        Engine(population, ScriptedOperator(), ScriptedJudge(judge), Ledger(Budget(evaluations=12))).run()
    return path


def judged(source: Source, purpose: Purpose, number: int) -> Evaluation:
    """Pairs find half of the claimed log gain."""
    found = scored(source, purpose)
    if purpose is not Purpose.CONFIRM:
        return found
    pairs = PairedComparison("large", CaseKind.SEARCH, Rival.FIRST, "first", 1.21, 1.2, 1.22, 40, "faster", 1.4641)
    hidden = PairedComparison("other", CaseKind.CONFIRM, Rival.FIRST, "first", 1.1, 1.09, 1.11, 40, "faster")
    return replace(found, comparisons=(pairs, hidden))


def test_status(searched: Path) -> None:
    found = json.loads(evo("status", searched, "--json").stdout)
    assert (found["attempts"], found["candidates"]) == (11, 12)
    assert found["evaluations"] == {"score": 12, "confirm": 1}
    assert found["best"]["score"] > 1.0 and found["best"]["confirmed"]
    assert found["environment"]["label"] == "modeled for an H200 (sm_90)"
    plain = evo("status", searched).stdout
    assert "modeled for an H200 (sm_90)" in plain and "12 passed" in plain and "confirmed" in plain
    assert found["champion"]["survived"] is None and found["champion"]["claimed"] == 1.4641
    assert "survived" not in plain and re.search(
        r"\nconfirmed    [\d.]+x.* and 1\.100x the first kernel on hidden cases; new: hidden sizes and checks with new "
        "inputs of every kind; times are the same model's\n",
        plain,
    )


def test_status_says_what_survived_of_measured_times(measured: Path) -> None:
    champion = json.loads(evo("status", measured, "--json").stdout)["champion"]
    assert champion["survived"] == pytest.approx(0.5) and champion["claimed"] == 1.4641
    plain = evo("status", measured).stdout
    assert re.search(
        r"50% of the claimed 1\.464x over the first kernel; [\d.]+x.* and 1\.100x the first kernel on hidden", plain
    )


def test_nothing_survives_the_same_model_again(searched: Path) -> None:
    assert json.loads(evo("show", searched, "champion", "--json").stdout)["confirmation"]["survived"] is None
    plain = evo("show", searched, "champion").stdout
    assert "survived" not in plain and "the first kernel (candidate 1), modeled: 1.210x" in plain
    assert "; new: hidden sizes and checks with new inputs of every kind; times are the same model's\n" in plain


def test_show_says_what_survived(measured: Path, searched: Path) -> None:
    found = json.loads(evo("show", measured, "champion", "--json").stdout)["confirmation"]
    assert (found["status"], found["claimed"], found["survived"]) == ("passed", 1.4641, pytest.approx(0.5))
    assert [(one["against"], one["ratio"], one["pairs"]) for one in found["comparisons"]] == [
        ("first kernel", 1.21, 40),
        ("first kernel", 1.1, 40),
    ]
    plain = evo("show", measured, "champion").stdout
    headline = (
        "1.210x (1.200 to 1.220) on search cases, 1.100x (1.090 to 1.110) on hidden cases; 50% of the claimed 1.464x"
    )
    assert "\nconfirmed\n" in plain and headline in plain
    assert "large  search, to the first kernel: 1.210x (1.200 to 1.220), faster, 40 pairs, 1.464x claimed" in plain
    assert json.loads(evo("show", searched, "1", "--json").stdout)["confirmation"] is None


def test_what_is_not_confirmed_is_exported_only_when_told(searched: Path, tmp_path: Path) -> None:
    refused = evo("export", searched, "--to", tmp_path / "out", "--candidate", "1")
    assert (
        refused.returncode == 2 and f"candidate 1 is not confirmed: `evo-kernel confirm {searched} 1`" in refused.stderr
    )
    assert "--unconfirmed" in refused.stderr and not (tmp_path / "out").exists()


def test_a_faster_candidate_that_is_not_exported_is_named_with_what_confirms_it(searched: Path, tmp_path: Path) -> None:
    assert overtaken(searched) == ""
    path, source = tmp_path / "told.db", Source("time_us = 0.5\n")
    shutil.copy(searched, path)
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        champion = population.champion()
        told = population.record(population.ask(), Proposal(source, "external"))
        population.tell(told, scored(source, Purpose.SCORE))
    assert champion is not None
    said = overtaken(path)
    assert (
        f"candidate {told.candidate} of {path}, which is faster than candidate {champion.candidate} (200.000x" in said
    )
    assert said.endswith(f"evo-kernel confirm {path}")


def test_show(searched: Path) -> None:
    best = json.loads(evo("status", searched, "--json").stdout)["best"]
    found = json.loads(evo("show", searched, "--json").stdout)
    assert found["candidate"] == best["candidate"]
    assert found["evaluation"]["score"] == best["score"]
    assert found["evaluation"]["environment"]["kind"] == "modeled"
    assert found["source"].startswith("time_us = ")
    assert "-time_us" in found["diff"] and "+time_us" in found["diff"]
    gains = [step["log_gain"] for step in found["path"] if step["log_gain"] is not None]
    assert sum(gains) == pytest.approx(math.log(best["score"]))
    plain = evo("show", searched, "best").stdout
    assert "modeled for an H200 (sm_90)" in plain and "shave@line 1" in plain and f"score {best['score']:.3f}" in plain
    assert evo("show", searched, "1", "--source").stdout == FIRST.text + "\n"


def test_show_prints_what_was_scored_and_what_takes_its_time(tmp_path: Path) -> None:
    """Knobs are written into the source, gains multiply to the score, launches and intermediate results are named."""
    path, source = tmp_path / "tuned.db", Source("BLOCK = 64\ndef run(x): ...\n")
    plan = PlanFeatures(launches=3, aten_nodes=0, kernels=(), scratch_bytes=201_300_000)
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        seed = population.plant(source, "compiled")
        untuned = scored(Source("time_us = 80.0\n"), Purpose.SCORE)
        terms = {"dram": 20.0, "issue": 12.0, "launch": 1.0, "latency": 8.0, "compared.of": 64.0}
        measured = replace(untuned.measurements[0], median_us=40.0, low_us=40.0, high_us=40.0, features=plan,
                           details=terms, light_share=0.5)  # fmt: skip
        tuned = replace(untuned, score=2.5, knobs=(("BLOCK", 512),), measurements=(measured,), verdicts=())
        for found in (untuned, tuned):
            population.tell(seed, replace(found, source=source.sha256))
    assert evo("show", path, "--source").stdout == "BLOCK = 512\ndef run(x): ...\n\n"
    plain = evo("show", path).stdout
    assert "BLOCK = 512" in plain and "BLOCK = 64" not in plain
    told = (
        "no resource is busy for 60% of the time; memory traffic (20.0 µs alone, 50%) and instructions (12.0 µs alone"
    )
    assert (
        f"bottleneck: latency: {told}, 30%) of 40.0 µs, modeled; waiting most for loads one after another; 3 la"
        in plain
    )
    assert "201.3 MB of intermediate results are written and read again" in plain
    assert "1.250x      1  compiled" in plain and "×  2.000x      1  tuning of its knobs" in plain
    page = tmp_path / "tuned.md"
    evo("report", path, "--to", page)
    assert "| 1 | tuning of its knobs | 2.500 | 2.00x |" in page.read_text() and "-BLOCK = 64" in page.read_text()


def test_show_champion_and_best_are_words(searched: Path, tmp_path: Path) -> None:
    found = json.loads(evo("status", searched, "--json").stdout)
    assert found["champion"] == found["best"]  # the best was confirmed
    assert evo("show", searched, "champion", "--json").stdout == evo("show", searched, "--json").stdout
    wrong = evo("show", searched, "winner")
    assert wrong.returncode == 2 and "champion" in wrong.stderr
    path = tmp_path / "new.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(FIRST)
    none = evo("show", path, "champion")
    assert none.returncode == 1 and "been confirmed" in none.stderr


def test_start_from_takes_the_best_of_another_population_with_their_knobs(searched: Path, tmp_path: Path) -> None:
    from evo_kernel.app.compose import START_FROM, _leaders
    from populations.reading import PopulationReader

    with PopulationReader(searched) as reader:
        best = reader.best()
        assert best is not None
        wanted = reader.candidate(best.candidate).proposal.source
    found = _leaders(searched)
    assert len(found) == START_FROM and found[0] == wanted
    missing = evo("run", "softmax", "--population", tmp_path / "p.db", "--start-from", tmp_path / "none.db")
    assert missing.returncode == 2 and "none.db" in missing.stderr and not (tmp_path / "p.db").exists()


def test_tree(searched: Path, tmp_path: Path) -> None:
    plain = evo("tree", searched, "--all").stdout
    assert "modeled for an H200 (sm_90)" in plain
    assert plain.count("scripted") + plain.count("shave") + plain.count("seed") >= 12
    for name in ("t.graphml", "t.jsonl"):
        assert evo("tree", searched, "--to", tmp_path / name).returncode == 0
        assert (tmp_path / name).stat().st_size > 100


def test_tree_shows_a_best_that_is_not_confirmed_yet(searched: Path, tmp_path: Path) -> None:
    path = tmp_path / "ahead.db"
    shutil.copyfile(searched, path)
    faster = Source("time_us = 0.001\n")
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        recorded = population.record(population.ask(), Proposal(faster, "scripted", Strategy("leap", "tiling")))
        population.tell(recorded, scored(faster, Purpose.SCORE))
    best = recorded.candidate
    said = evo("tree", path).stdout
    assert f"{best}  leap" in said and f"candidate {best} is faster, and not confirmed" in said
    found = json.loads(evo("tree", path, "--json").stdout)
    assert best not in found["path"] and best in [node["candidate"] for node in found["candidates"]]
    assert "not confirmed" not in evo("tree", searched).stdout


def test_tree_for_scripts(searched: Path) -> None:
    every = json.loads(evo("tree", searched, "--all", "--json").stdout)
    assert [node["candidate"] for node in every["candidates"]] == list(range(1, 13))
    found = json.loads(evo("tree", searched, "--json").stdout)
    assert [node["candidate"] for node in found["candidates"]] == found["path"] == every["path"]
    assert "all candidates" in " ".join(evo("tree", "--help").stdout.split())


def test_what_is_piped_is_never_cropped(tmp_path: Path) -> None:
    path, long = tmp_path / "wide.db", Source("time_us = 100.0  # " + "wide " * 60 + "end\n")
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(long)
        Engine(population, ScriptedOperator(), ScriptedJudge(), Ledger(Budget(evaluations=4))).run()
    shown = evo("show", path, "1", env={"COLUMNS": "40"}).stdout
    assert long.text in shown and "\x1b" not in shown
    assert "+time_us" in evo("show", path, "2", env={"COLUMNS": "40"}).stdout
    assert "share of light" in shown  # the table's last column is whole


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("status", "nothing.db"), 2, "There is no population at nothing.db"),
        (("show", "FILE", "99"), 2, "no candidate 99"),
        (("show", "FILE", "fastest"), 2, "is not a candidate"),
        (("show", "FILE", "9" * 24), 2, "is not a candidate"),
        (("confirm", "FILE", "0"), 2, "is not a candidate"),
        (("frob",), 2, "No such command"),
        (("run", "softmax", "--set", "budget.evaluation=1"), 2, "did you mean budget.evaluations?"),
        (("run", "softmax", "--config", "nothing.toml"), 2, "there is no configuration nothing.toml"),
        (("resume", "nothing.db"), 2, "There is no population at nothing.db"),
        (("export", "nothing.db", "--to", "x"), 2, "There is no population at nothing.db"),
        (("verify", "nothing.py", "--task", "softmax"), 2, "cannot read nothing.py"),
        (("verify", "nothing.py", "--task", "softmax"), 2, "no such file"),
        (("tasks", "show", "softmx"), 2, "Did you mean 'softmax'?"),
        (("run", "softmax", "--set", "budget.evaluation=1"), 2, "--set: there is no key"),
        (("run", "softmax", "--config", "quickstart.toml", "--set", "width=0"), 2, "--set: width:"),
        (("replay", "README.md", "--task", "softmax"), 2, "README.md is not a plan file"),
        (("replay", "nothing.plan", "--task", "softmax"), 2, "cannot read nothing.plan"),
    ],
)
def test_mistakes_become_sentences(searched: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    ended = evo(*(str(searched) if word == "FILE" else word for word in arguments))
    assert ended.returncode == code, ended.stderr
    assert says in ended.stderr
    assert not any(word in ended.stderr for word in ("pydantic", "Errno", "Invalid JSON", "quickstart.toml: "))
    assert "Traceback" not in ended.stderr


def test_nothing_found_is_exit_code_one(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(FIRST)
    ended = evo("show", path)
    assert (ended.returncode, "no candidate has passed yet" in ended.stderr) == (1, True)


def test_a_file_that_is_no_population(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("not a database, and long enough to be looked at as if it were one\n" * 20)
    ended = evo("status", path)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(FIRST)
        found = json.loads(evo_process("status", path, "--json").stdout)
    assert found["writer"]["pid"] == os.getpid()


@pytest.mark.parametrize("arguments", [("--help",), ("status", "FILE", "--json"), ("show", "FILE", "--json")])
def test_nothing_slow_is_imported_to_look(searched: Path, arguments: tuple[str, ...]) -> None:
    words = [str(searched) if word == "FILE" else word for word in arguments]
    script = (
        "import sys\nfrom evo_kernel.cli.main import main\n"
        f"sys.argv = ['evo-kernel', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(','.join(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    ended = child("-c", script, env={})
    assert ended.returncode == 0, ended.stderr
    assert not SLOW & set(ended.stderr.strip().splitlines()[-1].split(","))


def test_a_decoy_package_in_the_working_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    ended = evo_process("--help", cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert ended.returncode == 2, ended.stdout
    assert str(tmp_path / "operators") in ended.stderr
    assert "Traceback" not in ended.stderr
