"""What a prompt holds: golden files, budgets, and the rule by which each part gives way."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from evo_kernel.types import Decision, Source, Status, Tried
from operators.crossover import LlmCrossover
from operators.llm_policy import LlmPolicy
from operators.macro.catalogue import proposed
from operators.macro.features import MacroState
from operators.macro.policies import StrategyMemory
from operators.micro.llm_coder import LlmCoder
from operators.micro.session import SessionLimits
from operators.prompts.evidence import evidence
from operators.prompts.parts import Budgets, first_lines, rows, tokens, without_middle
from operators.prompts.writer import Prompts, chosen, document, relatives_text, shown, task_text, user
from tests.operators.golden_prompts import (
    CARD,
    GOLDEN,
    H200,
    HOIST,
    ONLINE,
    Library,
    conversations,
    prompts,
    sample,
    text_of,
)
from tests.operators.support_model import FakeModel
from tests.operators.support_search import credit, relative, seed_of

CONVERSATIONS = conversations()
LONG = "\n".join(f"line {n} with some words" for n in range(2000))


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
def test_prompts_are_the_golden_ones(name):
    again = "run `python -m tests.operators.golden_prompts` and read the difference"
    assert (GOLDEN / name).read_text() == text_of(CONVERSATIONS[name]), again


def test_the_prefix_is_the_same_for_another_parent():
    brief = sample()
    other = dataclasses.replace(brief, parent=relative(99, seed_of("rmsnorm")), attempt=41, tried=(), inspirations=())
    for role in ("macro", "coder", "crossover"):
        first, second = (prompts().system(b.task, b.environment, role) for b in (brief, other))
        assert first == second and first.stable


def test_roles_share_all_but_their_end():
    coder, macro = (prompts().system(CARD, H200, role).content for role in ("coder", "macro"))
    start = coder.index("## Your part")  # no "How to answer" in a role alone
    assert coder[:start] == macro[:start] and start > 0.6 * len(coder)


def test_our_own_documents_fit_their_budgets():
    budgets = Budgets()
    assert tokens(document("api")) <= budgets.api and tokens(document("sm_90")) + 60 <= budgets.hardware
    assert tokens(document("rules")) < 900


@pytest.mark.parametrize("budget", [0, 1, 10, 40, 100, 1000, 10**6])
def test_parts_keep_to_their_budgets(budget):
    brief = sample()
    relatives = chosen(brief.inspirations, brief.parent, 3)
    card = dataclasses.replace(CARD, reference=LONG)
    heads = 60  # tokens of verdicts and headings, which always stand
    for text in (first_lines(LONG, budget), without_middle(LONG, budget), rows(("head",), LONG.split("\n"), budget)):
        assert tokens(text) <= max(budget, 8) and (budget == 0) <= (text == "")
    assert tokens(evidence(brief.parent.evaluation, budget)) <= max(budget, 0) + heads
    assert tokens(task_text(card, budget)) <= budget + heads
    assert tokens(relatives_text(relatives, brief.parent, budget)) <= budget + len(relatives) * heads


def test_what_is_left_out_is_said():
    cut = without_middle(LONG, 100)
    assert cut.startswith("line 0 ") and cut.endswith("line 1999 with some words") and "more left out]" in cut
    count = int(cut.split("[")[1].split(" ")[0])
    assert count + len(cut.split("\n")) - 1 == 2000
    assert first_lines(LONG, 50).splitlines()[-1].endswith("more left out]")


def test_budgets_of_zero_leave_parts_out():
    none = Prompts(
        Budgets(evidence=0, inspirations=0, tried=0, profile=0, knowledge=0),
        knowledge=Library(),
        profile=lambda r: "table",
    )
    text = user(none.situation(sample(), sample().parent.source, query="rows")).content
    assert text.startswith("## Evidence of the parent") or text.startswith("## Source of the parent")
    for gone in ("41.5", "Relatives", "Tried", "Profile", "Passages"):
        assert gone not in text


def test_cases_come_before_the_reference_and_search_cases_first():
    text = task_text(dataclasses.replace(CARD, reference=LONG), 400)
    assert text.index("search m=4096") < text.index("check m=5") < text.index("line 0 ")


def test_hidden_functions_are_those_the_strategy_does_not_name():
    body = "\n".join(f"    a{n} = {n}" for n in range(300))
    text = f"def near(x):\n{body}\n\n\ndef far(x):\n{body}\n\n\ndef run(x):\n    return x\n"
    cut, whole = shown(text, tokens(text) * 2 // 3, ("near",))
    assert not whole and "[300 lines not shown]" in cut and cut.count("a299") == 1
    assert "def far(x):" in cut and "def run(x):\n    return x" in cut
    assert shown(text, tokens(text)) == (text, True)
    assert shown("def f(:\n" * 99, 1) == ("def f(:\n" * 99, True)


def test_relatives_are_a_better_one_another_cell_and_a_failure():
    brief = sample()
    found = chosen(brief.inspirations, brief.parent, 3)
    assert [(why, r.candidate) for why, r in found] == [("better than the parent", 31), ("a recent failure", 33)]
    assert not chosen(brief.inspirations, brief.parent, 0)
    text = relatives_text(found, brief.parent, 4000)
    assert "+BLOCK = 4096" in text and "off by 40x" in text


def test_passages_are_whole_or_left_out():
    class One(Library):
        def search(self, query, k=4):
            return [dataclasses.replace(note, text=note.text * 40) for note in super().search(query, k)]

    text = user(Prompts(Budgets(knowledge=1000), knowledge=One()).situation(sample(), Source("x"), query="q")).content
    assert "Row kernels (notes/rows.md)" in text and "Hopper" not in text
    text = user(Prompts(Budgets(knowledge=100), knowledge=One()).situation(sample(), Source("x"), query="q")).content
    assert "Row kernels" in text and "more left out]" in text


def test_no_secret_place_of_the_host_is_in_a_prompt(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "sk-very-secret")
    assert "sk-very-secret" not in json.dumps([text_of(m) for m in conversations().values()])


def flooded():
    """A brief in which everything that others write is endless."""
    brief, flood = sample(), "flood " * 5_000
    wrong = dataclasses.replace(brief.inspirations[1].evaluation, reason=flood)
    better = dataclasses.replace(brief.inspirations[0], source=Source("\n".join([flood] * 9)))
    failure = dataclasses.replace(brief.inspirations[1], evaluation=wrong)
    many = tuple(Tried(proposed(f"way-{n}", "memory", flood), Status.WRONG, None) for n in range(900))
    card = dataclasses.replace(CARD, description=flood, reference=flood, cases=CARD.cases * 500)
    return dataclasses.replace(brief, task=card, inspirations=(better, failure), tried=many), flood


def test_no_part_outgrows_its_budget_whatever_others_write():
    brief, flood = flooded()

    class Floods(Library):
        def search(self, query, k=4):
            return [dataclasses.replace(note, text="\n".join([flood] * 9)) for note in super().search(query, k)]

    memory = StrategyMemory()
    memory.learn(credit(Decision("uniform", (HOIST,), (1.0,), 0), 0.025))
    shared = Prompts(knowledge=Floods(), profile=lambda r: flood, memory=memory)
    state = MacroState(brief.task, brief.parent, brief.parent.source, trail=((ONLINE, flood),) * 900, brief=brief)
    offered = tuple(proposed(f"new-{n}", "memory", flood) for n in range(40))
    macro = LlmPolicy(FakeModel(""), shared).messages(state, offered)
    coder = LlmCoder(FakeModel(""), shared).opening(brief, brief.parent.source, ONLINE).messages
    crossover = LlmCrossover(FakeModel(""), shared).opening(brief, brief.parent.source, brief.inspirations[0]).messages
    budgets, heads = Budgets(), 100
    limits = {
        "Task": budgets.task, "Evidence": budgets.evidence,
        "Profile": budgets.profile, "Relatives": budgets.inspirations, "Tried": budgets.tried,
        "Passages": budgets.knowledge, "Source": budgets.source, "What has paid in": budgets.paid,
        "This attempt": budgets.trail, "Choose": budgets.offers,
        "Strategies of B": budgets.tried, "Guide": budgets.guide, "The strategy": 200, "Triton": budgets.api,
        "Hardware": budgets.hardware, "Your part": 600, "How to answer": 600,
    }  # fmt: skip
    for messages in (macro, coder, crossover):
        parts = "\n".join(message.content for message in messages).split("\n## ")[1:]
        for part in parts:
            (limit,) = [limit for title, limit in limits.items() if part.startswith(title)]
            assert tokens(part) <= limit + heads, part[:80]
        assert len(parts) >= 9
    endless = dataclasses.replace(brief.inspirations[1].evaluation, reason=flood)
    assert tokens(evidence(endless, 1000)) <= 150


DOCS = Path(__file__).resolve().parents[2] / "docs/guides/agents.md"


def test_the_documented_budgets_are_those_of_the_code():
    table = dict(re.findall(r"\(`(\w+)`\) \|[^|]*\| (\d+) \|", DOCS.read_text()))
    assert {name: int(tokens) for name, tokens in table.items()} == {
        name: value for name, value in dataclasses.asdict(Budgets()).items()
    }
    assert f"| {SessionLimits().fault_tokens} |" in DOCS.read_text()
