from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from evo_kernel.app.run_config import with_additions, with_duration
from evo_kernel.budget import Spent
from evo_kernel.cli.main import cli
from evo_kernel.config import load_config
from evo_kernel.deadline import duration_text, seconds_of
from evo_kernel.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5m", 90), ("8h", 28800), ("1h30m", 5400), ("2d", 172800), (" 10m ", 600)]
)
def test_people_write_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "0s", "h", "1m1h", "1..5h", "-3m", "eight hours", "1e3s"])
def test_what_is_none_is_told_how_to_be_one(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90s, 10m, 8h"):
        seconds_of(text)


@given(st.integers(1, 10**7))
def test_what_is_printed_can_be_read(seconds: int) -> None:
    assert 0 <= seconds - seconds_of(duration_text(seconds)) < (1 if seconds < 3600 else seconds / 24)


def test_a_duration_takes_the_place_of_hours_and_evaluations() -> None:
    config = load_config(None, ["budget.evaluations=60", "budget.hours=0.05", "budget.dollars=5"])
    assert with_duration(config, None, []) == config
    budget = with_duration(config, 8.0, []).budget
    assert (budget.hours, budget.evaluations, budget.dollars) == (8.0, None, 5.0)
    assert with_duration(config, 1.0, ["budget.evaluations=60"], spent_hours=0.5).budget.evaluations == 60
    assert with_duration(config, 1.0, [], spent_hours=0.5).budget.hours == 1.5
    with pytest.raises(ConfigError, match="use one of them"):
        with_duration(config, 1.0, ["budget.hours=2"])


def test_a_plus_adds_to_what_was_spent() -> None:
    spent = Spent(evaluations=61, dollars=2.25, tokens=900)
    asked = ["budget.dollars=+2", "budget.evaluations=+40", "budget.tokens=1000", "seed=+3"]
    expected = ["budget.dollars=4.25", "budget.evaluations=101", "budget.tokens=1000", "seed=+3"]
    assert with_additions(asked, spent) == expected
    with pytest.raises(ConfigError, match=r"budget.dollars=\+2"):
        with_additions(["budget.dollars=+much"], spent)


def test_the_commands_say_what_a_duration_is() -> None:
    answered = CliRunner().invoke(cli, ["run", "softmax", "--for", "8"])
    assert answered.exit_code == 2 and "write it like 90s, 10m, 8h, 1h30m or 2d" in answered.output


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "0", "-1"])
def test_a_deadline_is_a_time(seconds: str) -> None:
    for command in (["verify", "x.py", "--task", "softmax"], ["replay", "x.plan", "--task", "softmax"]):
        answered = CliRunner().invoke(cli, [*command, "--deadline", seconds])
        assert answered.exit_code == 2 and "--deadline" in answered.output
    with pytest.raises(ConfigError, match=r"judge\.deadline_s"):
        load_config(None, [f"judge.deadline_s={seconds}"])


def test_files_and_set_take_durations_too(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[budget]\nhours = "90s"\n')
    assert load_config(file).budget.hours == 90 / 3600
    assert load_config(None, ["budget.hours=8h"]).budget.hours == 8.0
    assert load_config(None, ["budget.hours=0.5"]).budget.hours == 0.5
    with pytest.raises(ConfigError, match=r"budget\.hours: .*write it like 90s, 10m, 8h"):
        load_config(None, ["budget.hours=soon"])
    assert with_additions(["budget.hours=+30m"], Spent(hours=1.0)) == ["budget.hours=1.5"]
