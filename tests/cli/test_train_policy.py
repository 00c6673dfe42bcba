"""`train policy`, and a run's configuration with the policy that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo_kernel.errors import UserError
from tests.operators.learning.conftest import one_thread  # noqa: F401
from tests.operators.learning.planted import planted
from tests.support.commands import evo
from tests.support.commands import told as result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tree, and a policy that is hardly trained."""
    path = tmp_path_factory.mktemp("train")
    planted(problems=4, steps=1, held_out=2).save(path / "tree.gz")
    evo("train", "policy", "--tree", str(path / "tree.gz"), "--out", str(path / "p.pt"), "--seconds", "0.2")
    return path


def test_training_tells_goes_on_and_keeps_the_best(folder: Path) -> None:
    tree, out = str(folder / "tree.gz"), str(folder / "more.pt")
    told = result(evo("train", "policy", "--tree", tree, "--out", out, "--seconds", "0.5", "--json"))
    assert (
        told["environments"] == "modeled for an H200 (sm_90)" and told["bytes"] < 20 * 2**20 and told["shortfall"] > 0
    )
    with pytest.raises(UserError, match="--resume"):
        evo("train", "policy", "--tree", tree, "--out", out)
    more = ["--method", "ppo", "--resume", "--seconds", "0.1", "--json"]
    again = result(evo("train", "policy", "--tree", tree, "--out", out, *more))
    assert again["shortfall"] <= told["shortfall"]


def test_a_run_takes_the_checkpoint_and_names_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evo_kernel.app.compose import lasting
    from evo_kernel.app.operator_factory import policy_of
    from evo_kernel.config import load_config

    monkeypatch.chdir(folder)
    config = load_config(None, ["operators.policy=trained", "operators.checkpoint=p.pt"])
    assert policy_of("trained", config).name == "trained"
    assert lasting(config).operators.checkpoint == folder / "p.pt", "a resume finds it from any folder"
    assert policy_of("trained", load_config(None, ["operators.policy=trained"])).name == "trained", "it comes along"
    named = load_config(None, ["operators.policy=p.pt"]).operators.policy
    assert named == str(folder / "p.pt") and policy_of(named, config).name == "trained"
    with pytest.raises(UserError, match=r"tree\.gz is no trained policy"):
        policy_of("trained", load_config(None, ["operators.policy=trained", "operators.checkpoint=tree.gz"]))
