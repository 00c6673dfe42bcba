"""The bench of agents: situations from a tree, regrets that need no model, and both parts against a local chat server."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.agents import __main__ as bench
from benchmarks.agents import macro, micro, situations
from benchmarks.agents.notebook import DOWN, Counted, Notebook
from evo_kernel.errors import UserError
from operators.learning import TREE
from operators.learning.tree import Tree
from operators.llm.base import Message, Model, ModelFailed, Reply
from operators.micro.coder import RewriteCoder
from tests.support.chat_server import Answer, ChatServer, failure
from tests.support.small_tasks import small_softmax

ABOUT = {"model": "some/model", "tree": "t"}


@pytest.fixture(scope="module")
def shipped() -> Tree:
    return Tree.load(TREE)


@pytest.fixture(scope="module")
def tree_file(shipped, tmp_path_factory) -> Path:
    """A tree with two parents of softmax and one of matmul."""
    found = situations.situations(shipped)
    softmax, matmul = ([one for one in found if one.task.name == name] for name in ("softmax", "matmul"))
    kept = {one.id.split(".")[1] for one in (*softmax[:2], matmul[0])}
    path = tmp_path_factory.mktemp("tree") / "tree.gz"
    children = {edge.child for name in kept for edge in shipped.edges(name).values() if edge.child}
    states = {name: one for name, one in shipped.states.items() if name in kept | children}
    transitions = {name: edges for name, edges in shipped.transitions.items() if name in kept}
    replace(shipped, states=states, transitions=transitions, _best={}).save(path)
    return path


@pytest.fixture(scope="module")
def found(tree_file) -> list[situations.Situation]:
    return situations.situations(Tree.load(tree_file))


# -- situations -------------------------------------------------------------------------------------------------------


def test_situations_are_whole_tasks_whose_every_offer_is_known(shipped):
    found = situations.situations(shipped, each=2)
    tasks = [one.task.name for one in found]
    assert len(set(tasks)) >= 10 and max(map(tasks.count, tasks)) == 2
    assert sorted(tasks[: len(set(tasks))]) == sorted(set(tasks)), "tasks in turn"
    for one in found:
        state = shipped.states[one.id.split(".")[1]]
        assert one.offered == state.offers and len(one.offered) > 1 and "@" not in state.task
        assert one.source.text == state.text
        gains = [shipped.edges(state.id)[offer.key].log_gain for offer in state.offers]
        assert one.best == pytest.approx(max(0.0, *gains))
        assert 0.0 <= situations.uniform(one) <= one.best


def test_a_bandit_learns_from_its_choices(found):
    """One action always pays and all others never do: what is met often enough is chosen."""
    one = found[0]
    best = one.actions[2].strategy.name
    gains = {True: math.log(2.0), False: -math.log(2.0)}
    actions = tuple(replace(a, log_gain=gains[a.strategy.name == best], witnessed=True) for a in one.actions)
    many = [replace(one, actions=actions, id=str(n)) for n in range(60)]
    assert np.mean(situations.bandit(many, orders=2)) < 0.6 * np.mean([situations.uniform(each) for each in many])


def test_no_model_prints_every_policy(capsys, tree_file):
    bench.main(["--no-model", "--tree", str(tree_file)])
    said = capsys.readouterr().out
    assert all(name in said for name in situations.NO_MODEL)


# -- with a model -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tree_file):
    def run(server: ChatServer, out: Path, *more: str) -> None:
        words = ["--model", "anything", "--base-url", server.url, "--out", str(out), "--device", "cpu"]
        bench.main([*words, "--tree", str(tree_file), *more])

    return run


def _rows(out: Path, kind: str) -> list[dict]:
    return [row for row in map(json.loads, out.read_text().splitlines()) if row["kind"] == kind]


def _second(request, number) -> Answer:
    return Answer(json.dumps({"why": "it is", "choice": 2, "confidence": 0.8}))


def test_macro_asks_with_both_kinds_of_evidence_and_once_only(tmp_path, capsys, found, run):
    out = tmp_path / "bench.jsonl"
    with ChatServer(_second) as server:
        run(server, out, "--parts", "macro")
        asked = len(server.requests)
        run(server, out, "--parts", "macro")
        assert len(server.requests) == asked == 2 * len(found)
    items = {(row["parent"], row["variant"]): row for row in _rows(out, "item")}
    for one in found:
        row = items[(one.id, macro.OWN)]
        assert row["by_model"] and row["chosen"] == one.offered[1].key
        assert row["regret"] == pytest.approx(one.best - one.actions[1].value)
        assert items[(one.id, macro.PLACEBO)]["regret"] == pytest.approx(row["regret"])
    said = capsys.readouterr().out
    assert "not shown that the evidence is used" in said  # it answers the same whatever it is shown
    assert "bar, macro regret below the bandit's" in said


def test_the_placebo_shows_another_kernels_evidence(found):
    one = next(one for one in found if one.task.name == "softmax")
    other = macro.placebos(found)[one.id]
    assert other.id != one.id and other.task.name == "softmax"
    assert macro.brief_of(one, other).parent.evaluation is other.parent.evaluation
    assert macro.brief_of(one, other).parent.source == one.source


def test_an_answer_that_cannot_be_used_counts_as_an_even_choice(tmp_path, found, run):
    out = tmp_path / "bench.jsonl"
    with ChatServer([Answer("I would rather not say.")]) as server:
        run(server, out, "--parts", "macro")
    rows = [row for row in _rows(out, "item") if row["variant"] == macro.OWN]
    expected = {one.id: situations.uniform(one) for one in found}
    assert rows and all(not row["by_model"] for row in rows)
    assert all(row["regret"] == pytest.approx(expected[row["parent"]]) for row in rows)


def test_the_calls_are_never_passed_and_a_later_session_goes_on(tmp_path, run):
    out = tmp_path / "bench.jsonl"
    with ChatServer(_second) as server:
        run(server, out, "--parts", "macro", "--calls", "2")
        assert len(server.requests) == 2
        run(server, out, "--parts", "macro", "--calls", "4")
        assert len(server.requests) == 4


def test_a_server_that_refuses_spoils_no_item_and_uses_up_no_call(tmp_path, run):
    out = tmp_path / "bench.jsonl"
    with ChatServer([failure(401, "no such key")]) as server, pytest.raises(SystemExit, match="does not answer"):
        run(server, out, "--parts", "macro", "--calls", "4")
    assert not _rows(out, "item")
    with ChatServer(_second) as server:
        run(server, out, "--parts", "macro", "--calls", "4")
    assert len(_rows(out, "item")) == 4


def test_a_server_that_is_gone_ends_the_bench(tmp_path):
    class Gone(Model):
        name = "gone"

        def answer(self, request) -> Reply:
            raise ModelFailed("no connection", "down")

    counted = Counted(Gone(), Notebook(tmp_path / "o.jsonl", ABOUT), "macro", 100)
    for _ in range(DOWN - 1):
        with pytest.raises(ModelFailed):
            counted.complete([Message("user", "?")])
        assert counted.failed == "down"
    with pytest.raises(UserError, match="no connection"):
        counted.complete([Message("user", "?")])
    assert counted.left == 100


def test_micro_is_judged_here(tmp_path, found, capsys):
    """A server that carries every strategy out by handing over the rewriter's child."""
    (pair,) = [one for one in micro.pairs(found) if one.situation.task.name == "softmax"][:1]
    small = str(small_softmax(tmp_path).path)
    one = replace(pair.situation, task=replace(pair.situation.task, name=small))
    text = RewriteCoder().implement(one.source, pair.action.strategy)
    asked = micro.pairs([replace(one, actions=(pair.action,))])
    assert [each.id for each in asked] == [pair.id]
    out = tmp_path / "bench.jsonl"
    notebook = Notebook(out, ABOUT)
    with ChatServer([Answer(f"```python\n{text}```")]) as server:
        model = bench.open_chosen_model(bench.options().parse_args(["--model", "anything", "--base-url", server.url]))
        micro.ask(asked, Counted(model, notebook, "micro", 4), notebook, "cpu", 1)
        micro.ask(asked, Counted(model, notebook, "micro", 4), notebook, "cpu", 1)
        assert len(server.requests) == 1
    (row,) = _rows(out, "item")
    assert row["applied"] and row["correct"] and row["witnessed"] and row["judged"] == "modeled"
    assert row["log_gain"] is not None and row["answers"] == 1
    bench.print_report(notebook, found)
    said = capsys.readouterr().out
    assert "times are modeled" in said and "correct and witnessed" in said


def test_a_model_that_thinks_nothing_is_refused(tmp_path, tree_file):
    with pytest.raises(SystemExit, match="thinks nothing"):
        bench.main(["--model", "scripted", "--out", str(tmp_path / "o.jsonl"), "--tree", str(tree_file)])


def test_a_notebook_belongs_to_one_model(tmp_path):
    Notebook(tmp_path / "o.jsonl", ABOUT)
    with pytest.raises(UserError, match="give another --out"):
        Notebook(tmp_path / "o.jsonl", ABOUT | {"model": "another"})
