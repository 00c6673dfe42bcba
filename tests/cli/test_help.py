"""Everything a user can type says what it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs import generated_pages
from evo_kernel.cli.main import cli
from evo_kernel.config import Config, keys, load_config
from evo_kernel.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


@pytest.mark.parametrize(("name", "command"), list(commands(cli)))
def test_commands_and_options_have_help(name: str, command: click.Command) -> None:
    assert command.help and command.help.split("\n")[0].endswith((".", ":", "?")), f"{name} has no help"
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        explained = option.help or isinstance(option.type, click.Choice)
        assert explained, f"{name} {option.opts[0]} has no help"


def test_every_command_that_judges_can_be_kept_off_the_gpu() -> None:
    found = {name for name, command in commands(cli) for option in command.params if "--device" in option.opts}
    assert found >= {"run", "resume", "verify", "replay", "profile", "export", "doctor", "tasks check"}
    for name, command in commands(cli):
        for option in command.params:
            if "--device" in option.opts:
                assert isinstance(option.type, click.Choice) and set(option.type.choices) == {"auto", "cpu", "cuda"}, (
                    name
                )


def test_every_configuration_key_says_what_it_is_for() -> None:
    found = list(keys())
    assert len(found) > 15
    for name, description, _ in found:
        assert len(description) > 10, f"{name} has no description"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.toml")))
def test_shipped_configurations_load_by_path_and_name(name: str, tmp_path: Path, monkeypatch) -> None:
    text = (ROOT / "configs" / name).read_text()
    assert re.search(r"^# evo-kernel run ", text, re.MULTILINE), "says how it is run"
    assert load_config(ROOT / "configs" / name) == load_config(Path("configs") / name)
    monkeypatch.chdir(tmp_path)
    assert load_config(Path(name)) == load_config(ROOT / "configs" / name)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("budget.evaluation=3", "did you mean budget.evaluations?"),
        ("widht=3", "did you mean width?"),
        ("operators.polcy=uniform", "did you mean operators.policy?"),
        ("tune_plans=3", "did you mean judge.tune_plans?"),
        ("width=many", "width"),
        ("width", "key=value"),
        ("width.x=1", "width"),
    ],
)
def test_a_wrong_key_names_the_nearest(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config(None, [override])


def test_an_unknown_key_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[judge]\ntune_plan = 3\n")
    with pytest.raises(ConfigError, match=r"mine.toml: there is no key judge.tune_plan; did you mean judge.tune_plans"):
        load_config(path)
    path.write_text("width = \n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)
    with pytest.raises(ConfigError, match=r"quickstart.toml"):
        load_config(tmp_path / "missing.toml")


def test_overrides_reach_nested_keys() -> None:
    config = load_config(None, ["budget.hours=0.5", "search.selection.uniform=1", "operators.policy=uniform", "seed=9"])
    assert (config.budget.hours, config.search.selection.uniform, config.operators.policy) == (0.5, 1, "uniform")
    assert config.seed == 9
    with pytest.raises(Exception, match="frozen"):
        config.seed = 1  # type: ignore[misc]
    assert isinstance(Config.model_validate(config.model_dump(mode="json")), Config)


def test_the_manual_holds_every_command_and_key() -> None:
    text = generated_pages.commands()
    assert all(f"## evo-kernel {name}\n" in text for name, _ in commands(cli))
    assert "python -m" not in text.split("## evo-kernel run")[1] and "\b" not in text
    assert all(f"| `{name}` |" in generated_pages.configuration() for name, _, _ in keys())
