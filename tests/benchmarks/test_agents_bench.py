"""The bench of agents: its ground truth, regrets that need no model, and every part against a local chat server."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.agents import __main__ as bench
from benchmarks.agents import coding, planting, problems, regret, thinking, truth
from benchmarks.agents.arms import ARMS, ArmLimits, Asked, command
from benchmarks.agents.collect import Deal
from benchmarks.agents.notebook import DOWN, MOST_CALLS, Counted, Notebook
from benchmarks.agents.prepare import categories_by_task, shared_out
from evo_kernel.errors import UserError
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.loading import load
from operators.llm.base import Message, ModelFailed, Reply
from operators.micro.coder import RewriteCoder
from tests.support.chat_server import Answer, ChatServer, failure

TINY = Path(__file__).parent / "tiny"
ABOUT = {"model": "some/model", "problems": "p"}


@pytest.fixture(scope="module")
def made() -> problems.Problems:
    return problems.load(TINY / "problems.json.gz")


@pytest.fixture(scope="module")
def found(made) -> list[regret.Situation]:
    return regret.situations(truth.read(TINY / "truth.jsonl.gz"), made)


# -- problems ---------------------------------------------------------------------------------------------------------


def test_the_shipped_problems_are_all_there():
    shipped = problems.load()
    assert len(shipped.parents) == 120
    assert len({one.text for one in shipped.parents}) == 120
    assert {one.depth for one in shipped.parents} == {0, 1, 2, 3, 4}
    categories = [one.category for one in shipped.planted]
    assert {name: categories.count(name) for name in problems.CATEGORIES} == dict.fromkeys(problems.CATEGORIES, 10)
    for one in shipped.planted:
        parse_module(one.text)
        assert one.text != one.right == planting.plain(shipped.parent(one.parent).text)


def test_a_walk_can_be_walked_again(made):
    """The stored path leads from the first kernel to the stored text, by the rewriter as it is."""
    coder, parent = RewriteCoder(), made.parents[2]
    task = load(parent.task)
    source = problems.Parent("", "", (), task.seed.text).source
    for strategy in parent.path:
        source = replace(source, text=coder.implement(source, strategy, task.card(), np.random.default_rng(0)))
    assert parent.depth and source.text == parent.text


def test_mutations_change_one_thing_and_are_told_apart():
    text = load("matmul").seed.text
    for category in problems.CATEGORIES:
        variants = list(planting.variants(text, category))
        assert variants == list(planting.variants(text, category))
        assert all(changed != planting.plain(text) for _, changed in variants), category
        assert len({changed for _, changed in variants}) == len(variants) > 0


def test_shares_add_up():
    shares = shared_out(120, {"a": 11, "b": 9, "c": 1})
    assert sum(shares.values()) == 120
    assert shares["a"] > shares["b"] > shares["c"] >= 1
    tasks = [load(name) for name in ("softmax", "matmul", "attention")]
    wanted = categories_by_task(tasks, 40)
    assert sum(map(len, wanted.values())) == 40
    assert "launch" not in wanted["softmax"]


# -- the ground truth -------------------------------------------------------------------------------------------------


def test_rows_survive_a_torn_part_and_the_later_one_wins(tmp_path):
    path = tmp_path / "truth.jsonl.gz"
    one = {"kind": "action", "parent": "p", "key": "k", "status": "passed"}
    truth.part(path, 0).write_text(truth.line(one) + "\n" + truth.line({"kind": "done", "id": "p"}) + "\n")
    truth.merge(path)
    truth.part(path, 0).write_text(truth.line(one | {"status": "wrong"}) + "\n" + truth.line(one)[:20])
    rows = truth.merge(path)
    assert [row["status"] for row in truth.of_kind(rows, "action")] == ["wrong"]
    assert truth.of_kind(rows, "done") == [{"kind": "done", "id": "p"}]
    assert not truth.parts(path)
    assert truth.read(path) == rows


def test_an_evaluation_comes_back_as_prompts_and_witnesses_need_it(found):
    evaluation = found[0].parent.evaluation
    assert evaluation is not None
    again = truth.evaluation_of(json.loads(truth.line(truth.evaluation_data(evaluation))))
    assert again.measurements == evaluation.measurements
    assert again.features is not None and again.features.kernels[0].grid == evaluation.features.kernels[0].grid


def test_parents_are_dealt_once_and_a_slow_task_gives_way(made):
    names = ("a", "a", "a", "b")
    parents = [replace(made.parents[0], id=f"{name}{n}", task=name) for n, name in enumerate(names)]
    deal = Deal(parents, [], 100.0)
    task, first, _ = deal.next(None, 0.0)
    assert (task, first.id) == ("a", "a0")
    assert deal.next("a", 1.0)[1].id == "a1"
    assert deal.next("a", 90.0)[1].id == "b3"  # its share of the time is over
    assert deal.next("b", 1.0)[1].id == "a2"
    assert deal.next("a", 1.0) is None


# -- regrets that need no model ---------------------------------------------------------------------------------------


def test_values_and_regrets_are_those_of_the_rows(found):
    assert len(found) >= 2
    for one in found:
        gains = [action.gain[0] if action.gain else 1.0 for action in one.actions]
        assert one.best == pytest.approx(max(0.0, math.log(max(gains))))
        assert 0.0 <= regret.uniform(one) <= one.best
        assert 0.0 <= regret.modeled(one) <= one.best
    # The times of this truth are modeled, of untuned children: the model's ranking is exact here.
    assert all(regret.modeled(one) == pytest.approx(0.0, abs=1e-4) for one in found)


def test_a_bandit_learns_from_its_choices(found):
    """One action always pays and all others never do: what is met often enough is chosen."""
    one = found[0]
    best = one.actions[2].strategy.name
    gains = {True: (2.0, 2.0, 2.0), False: (0.5, 0.5, 0.5)}
    actions = tuple(replace(a, gain=gains[a.strategy.name == best], witnessed=True) for a in one.actions)
    many = [replace(one, actions=actions, id=str(n)) for n in range(60)]
    assert np.mean(regret.bandit(many, orders=2)) < 0.6 * np.mean([regret.uniform(each) for each in many])


def test_intervals_hold_the_mean_and_shrink():
    rng = np.random.default_rng(0)
    few, many = (regret.mean_of(list(rng.normal(1.0, 1.0, n))) for n in (20, 500))
    assert few.low < 1.0 < few.high
    assert many.high - many.low < few.high - few.low


def test_no_model_prints_every_policy(capsys):
    bench.main(["--no-model", *_files()])
    said = capsys.readouterr().out
    assert all(name in said for name in regret.NO_MODEL)


# -- with a model -----------------------------------------------------------------------------------------------------


def _files() -> list[str]:
    return ["--truth", str(TINY / "truth.jsonl.gz"), "--problems", str(TINY / "problems.json.gz")]


def _run(server: ChatServer, out: Path, *more: str) -> None:
    bench.main(
        ["--model", "anything", "--base-url", server.url, "--out", str(out), "--device", "cpu", *_files(), *more]
    )


def _rows(out: Path, kind: str) -> list[dict]:
    return [row for row in map(json.loads, out.read_text().splitlines()) if row["kind"] == kind]


def _second(request, number) -> Answer:
    return Answer(json.dumps({"why": "it is", "choice": 2, "confidence": 0.8}))


def test_macro_asks_with_both_kinds_of_evidence_and_once_only(tmp_path, capsys, found):
    out = tmp_path / "bench.jsonl"
    with ChatServer(_second) as server:
        _run(server, out, "--parts", "macro")
        asked = len(server.requests)
        _run(server, out, "--parts", "macro")
        assert len(server.requests) == asked == 2 * len(found)
    items = {(row["parent"], row["variant"]): row for row in _rows(out, "item")}
    for one in found:
        row = items[(one.id, thinking.OWN)]
        assert row["by_model"] and row["chosen"] == one.offered[1].key
        assert row["regret"] == pytest.approx(one.best - one.actions[1].value)
        assert items[(one.id, thinking.PLACEBO)]["regret"] == pytest.approx(row["regret"])
    said = capsys.readouterr().out
    assert "not shown that the evidence is used" in said  # it answers the same whatever it is shown
    assert "bar, macro regret below the bandit's" in said


def test_the_placebo_shows_another_kernels_evidence(found):
    same_task = [one for one in found if one.task.name == "softmax"]
    other = thinking.placebos(same_task)[0]
    assert other.id != same_task[0].id
    assert thinking.brief_of(same_task[0], other).parent.evaluation is other.parent.evaluation
    assert thinking.brief_of(same_task[0], other).parent.source == same_task[0].source


def test_an_answer_that_cannot_be_used_counts_as_an_even_choice(tmp_path, found):
    out = tmp_path / "bench.jsonl"
    with ChatServer([Answer("I would rather not say.")]) as server:
        _run(server, out, "--parts", "macro")
    rows = [row for row in _rows(out, "item") if row["variant"] == thinking.OWN]
    expected = {one.id: regret.uniform(one) for one in found}
    assert rows and all(not row["by_model"] for row in rows)
    assert all(row["regret"] == pytest.approx(expected[row["parent"]]) for row in rows)


def test_the_calls_are_never_passed_and_a_later_session_goes_on(tmp_path):
    out = tmp_path / "bench.jsonl"
    with ChatServer(_second) as server:
        _run(server, out, "--parts", "macro", "--calls", "2")
        assert len(server.requests) == 2
        _run(server, out, "--parts", "macro", "--calls", "4")
        assert len(server.requests) == 4


def test_a_server_that_refuses_spoils_no_item_and_uses_up_no_call(tmp_path):
    out = tmp_path / "bench.jsonl"
    with ChatServer([failure(401, "no such key")]) as server, pytest.raises(SystemExit, match="does not answer"):
        _run(server, out, "--parts", "macro", "--calls", "4")
    assert not _rows(out, "item")
    with ChatServer(_second) as server:
        _run(server, out, "--parts", "macro", "--calls", "4")
    assert len(_rows(out, "item")) == 4


def test_a_server_that_is_gone_ends_the_bench(tmp_path):
    class Gone:
        name = "gone"

        def complete(self, messages, *, tools=(), schema=None, max_tokens=None) -> Reply:
            raise ModelFailed("no connection", "down")

    counted = Counted(Gone(), Notebook(tmp_path / "o.jsonl", ABOUT), "macro", 100)
    for _ in range(DOWN - 1):
        with pytest.raises(ModelFailed):
            counted.complete([Message("user", "?")])
    with pytest.raises(UserError, match="no connection"):
        counted.complete([Message("user", "?")])
    assert counted.left == 100


def test_micro_and_repair_are_judged_here(tmp_path, made, found, capsys):
    """A server that mends every fault it is shown, and carries out every strategy by handing over the rewriter's child."""
    faults = {one.text.strip(): one for one in made.planted}
    children = {}
    coder = RewriteCoder()
    for pair in coding.pairs(found, 1):
        one = pair.situation
        text = coder.implement(one.source, pair.action.strategy, one.task, np.random.default_rng(0))
        children[one.source.text.strip()] = text

    def answer(request, number) -> Answer:
        said = request["messages"][-1]["content"]
        for text, fault in faults.items():
            if text in said:
                return Answer(f"```python\n{fault.right}```")
        return next(Answer(f"```python\n{child}```") for text, child in children.items() if text in said)

    out = tmp_path / "bench.jsonl"
    with ChatServer(answer) as server:
        _run(server, out, "--parts", "micro,repair", "--calls", "12", "--width", "1")
    rows = _rows(out, "item")
    micro = [row for row in rows if row["part"] == "micro"]
    assert {row["variant"] for row in micro} == set(coding.VARIANTS)
    assert all(row["applied"] and row["correct"] and row["witnessed"] for row in micro)
    assert {row["judged"] for row in micro} == {"modeled"}
    assert micro[0]["gain"][0] == pytest.approx(micro[0]["reference"][0], rel=0.02)
    repaired = [row for row in rows if row["part"] == "repair"]
    assert {row["variant"] for row in repaired} == {coding.CATEGORY, coding.NO_CATEGORY}
    assert all(row["repaired"] and row["answers"] == 1 for row in repaired)
    said = capsys.readouterr().out
    assert "times are modeled" in said
    assert "the category brings" in said


def test_the_request_names_the_category_only_where_it_is_told(found):
    evaluation = replace(found[0].parent.evaluation, status="build_error", reason="no such name", score=None)
    assert "compile" in coding.request(evaluation, True)
    assert "compile" not in coding.request(evaluation, False)


@pytest.mark.parametrize("name", ["scripted", "scripted:answers.jsonl", "replay:run.jsonl"])
def test_models_that_think_nothing_are_refused(name, tmp_path):
    with pytest.raises(SystemExit, match="thinks nothing"):
        bench.main(["--model", name, "--out", str(tmp_path / "o.jsonl"), *_files()])


def test_a_notebook_belongs_to_one_model(tmp_path):
    Notebook(tmp_path / "o.jsonl", ABOUT)
    with pytest.raises(UserError, match="give another --out"):
        Notebook(tmp_path / "o.jsonl", ABOUT | {"model": "another"})


def test_three_hundred_calls_are_the_most(tmp_path):
    class Free:
        name = "free"

        def complete(self, messages, *, tools=(), schema=None, max_tokens=None) -> Reply:
            raise ModelFailed("no JSON", "malformed")

    counted = Counted(Free(), Notebook(tmp_path / "o.jsonl", ABOUT, most=10_000), "macro", 10_000)
    for _ in range(MOST_CALLS + 5):
        with pytest.raises(ModelFailed):
            counted.complete([Message("user", "?")])
    again = Notebook(tmp_path / "o.jsonl", ABOUT, most=10_000)
    assert again.spent == MOST_CALLS
    assert again.left == 0


def test_arms_differ_in_their_operators_only(tmp_path):
    limits = ArmLimits(1.5, None, 0.5, 20)
    asked = Asked("some/model", None, "cuda")
    made = {arm: command("softmax", names, tmp_path / "a.db", asked, limits) for arm, names in ARMS.items()}
    assert all("budget.dollars=1.5" in words and "budget.hours=0.5" in words for words in made.values())
    rest = {tuple(word for word in words if not word.startswith("operators.use")) for words in made.values()}
    assert len(rest) == 1
    assert len({tuple(words) for words in made.values()}) == len(ARMS)


def test_arms_need_one_limit(tmp_path):
    with pytest.raises(SystemExit, match="--arm-dollars"):
        bench.main(["--model", "some/model", "--parts", "arms", "--out", str(tmp_path / "o.jsonl"), *_files()])
