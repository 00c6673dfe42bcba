"""`evo-kernel knowledge`: what people and other programs see of the knowledge base."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from evo_kernel.cli.knowledge import knowledge
from evo_kernel.config import load_config
from evo_kernel.errors import ConfigError, UserError


def ask(*arguments: str):
    return CliRunner().invoke(knowledge, [*arguments, "--no-api"], catch_exceptions=False)


def test_passages_are_printed_with_their_source():
    done = ask("bank", "conflicts", "swizzle", "--k", "2")
    assert done.exit_code == 0
    assert done.stdout.count("\n   evo-kernel/") == 2 and "evo-kernel/shared_memory.md#" in done.stdout


def test_json_is_a_list_of_passages():
    found = json.loads(ask("online softmax", "--k", "3", "--json").stdout)
    assert len(found) == 3 and all(set(one) == {"source", "title", "text"} for one in found)


def test_without_a_query_everything_is_listed():
    lines = ask().stdout.splitlines()
    assert len(lines) > 80 and any(line.startswith("evo-kernel/attention.md#online-softmax") for line in lines)


def test_nothing_found_is_exit_code_one():
    done = ask("zxqyw")
    assert done.exit_code == 1 and "nothing was found for 'zxqyw'" in done.stderr
    assert json.loads(ask("zxqyw", "--json").stdout) == []


def test_folders_come_from_the_command_line_and_from_a_configuration(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.md").write_text(f"# Okapi {name}\nfacts\n")
    config = tmp_path / "mine.toml"
    config.write_text(f'[knowledge]\nfolders = ["{tmp_path / "two"}"]\n')
    found = json.loads(ask("okapi", "--folder", str(tmp_path / "one"), "--config", str(config), "--json").stdout)
    assert {one["source"] for one in found} == {"one/note.md#okapi-one", "two/note.md#okapi-two"}


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(UserError, match="no knowledge folder"):
        ask("x", "--folder", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"did you mean knowledge\.folders"):
        load_config(None, ["knowledge.folder=[]"])
