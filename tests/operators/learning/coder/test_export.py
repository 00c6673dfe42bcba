"""What is exported: from populations, trees and walks; filtered, each once, split by family; read back as it was."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from evo_kernel.app.train.reward import JudgedReward
from evo_kernel.cli.main import cli
from evo_kernel.errors import UserError
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.types import Call, Proposal, Source, Status, Strategy
from operators.learning.coder import examples as exporting
from operators.learning.coder.answers import BadLines, answer_text, applied, kernel_of, numbered, reasoning_of, written
from operators.learning.coder.examples import Example, Wanted, kept, of_tree, read, rewarded, write
from operators.learning.coder.rewards import parts_of
from operators.learning.coder.walks import fused, invented, renamed, walks
from operators.learning.tree import strategy_data
from operators.llm.transcript import pack
from operators.micro.edit_blocks import DIVIDE, REPLACE, SEARCH
from populations.population import open_population
from tests.operators.learning import trees
from tests.operators.learning.coder.support import EXAMPLES, FIRSTS
from tests.populations.samples import CARD, MODELED, TASK, failed, passed

ROOT = "import triton\n\nBLOCK = 64\n\n\ndef run(x):\n    y = x\n    return y\n"
CHILD = ROOT.replace("y = x", "y = x + 0")
HINTS = trees.HINTS


def population(path):
    """A root, a child that an agent reasoned about (faster, witnessed: other hints), and one that is wrong."""
    import random

    rng = random.Random(0)
    reply = {"role": "assistant", "content": f"Streams evict.\n\n{answer_text(ROOT, CHILD)}"}
    call = Call("model", messages=pack({"messages": []}, reply))
    with open_population(
        path, task=CARD, task_identity=TASK, environment=MODELED, seed=0, run={}, create=True
    ) as opened:
        root = opened.plant(Source(ROOT))
        opened.tell(root, passed(root.proposal.source, rng, log_us=3.0))
        for text, verdict in ((CHILD, "passed"), (CHILD + "# wrong\n", "wrong")):
            brief = opened.ask()
            told = opened.record(brief, Proposal(Source(text), "llm-mtmc", HINTS, calls=(call,)))
            source = told.proposal.source
            opened.tell(told, passed(source, rng, log_us=2.5) if verdict == "passed" else failed(source))
    return path


def exported(*arguments):
    result = CliRunner().invoke(cli, ["train", "export-sft", *map(str, arguments), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


def test_a_lineage_becomes_conversations(tmp_path):
    path, out = population(tmp_path / "softmax.db"), tmp_path / "edits.jsonl"
    counts = exported(path, "--out", out, "--any-witness")
    assert counts["examples"] == 1 and counts["with_reasoning"] == 1, "the wrong one is left out"
    (row,) = map(json.loads, out.read_text().splitlines())
    assert [one["role"] for one in row["messages"]] == ["system", "user", "assistant"]
    answer = row["messages"][-1]["content"]
    assert answer.startswith("Streams evict.\n\n" + SEARCH) and kernel_of(answer, row["parent"]).text == CHILD
    assert "cache-hints" in row["messages"][1]["content"] and "y = x" in row["messages"][1]["content"]
    assert row["gain"] == pytest.approx(0.5) and row["origin"] == "softmax.db#2" and row["split"] == "train"
    with pytest.raises(UserError, match="--min-gain"):
        exported(path, "--out", out, "--any-witness", "--min-gain", "0.6")


def test_a_tree_is_filtered_by_witness_gain_and_family(tmp_path):
    tree = trees.joined(trees.small(), trees.small("softmax", "held-out", "loss"))
    found = list(of_tree(tree))
    assert len(found) == 6 and {one.split for one in found} == {"train", "held-out"}
    assert len(list(kept(found + found, Wanted()))) == 6, "each once"
    assert {one.strategy.name for one in kept(found, Wanted(gain=0.0))} == {"cache-hints", "hoist"}
    assert {one.strategy.name for one in kept(found, Wanted(strategies=frozenset({"exp2"})))} == {"exp2"}
    assert {one.split for one in kept(found, Wanted(), ("row",)) if one.family == "row"} == {"held-out"}
    tree.save(tmp_path / "tree.gz")
    counts = exported(tmp_path / "tree.gz", "--out", tmp_path / "t.jsonl", "--split", "held-out", "--min-gain", "0")
    assert counts["splits"] == {"held-out": 2} and counts["families"] == {"loss": 2}


def test_filters_ask_for_verdicts():
    good = Example("t", "a", "b", HINTS, Status.PASSED, True, 0.1)
    cases = {
        Wanted(): True, Wanted(gain=0.2): False, Wanted(characters=0): True,
        Wanted(strategies=frozenset({"hoist"})): False,
    }  # fmt: skip
    for wanted, expected in cases.items():
        assert wanted.fits(good) is expected
    from dataclasses import replace

    assert not Wanted().fits(replace(good, witnessed=False)) and Wanted(False).fits(replace(good, witnessed=False))
    assert not Wanted().fits(replace(good, status=Status.WRONG)) and Wanted().fits(replace(good, status=None))
    assert not Wanted(gain=0.0).fits(replace(good, gain=None))


def test_files_come_back_as_they_were(tmp_path):
    path = tmp_path / "some.jsonl"
    some = list(kept(EXAMPLES, Wanted()))
    assert write(path, some) == len(some) and {one.split for one in some} == {"held-out"}  # elementwise
    again = read(path)
    assert [one.key for one in again] == [one.key for one in some] and again[0].family == "elementwise"
    assert again[0].messages[0]["role"] == "system"
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(UserError, match=rf"line {len(some) + 1}: no example"):
        read(path)


def test_walks_repeat_and_renamed_kernels_are_kernels():
    rng = np.random.default_rng
    one, two = (list(walks(FIRSTS, 6, rng(4))) for _ in range(2))
    assert one == two and len(one) == 6
    text = FIRSTS[0][1].text
    other = renamed(text, rng(1))
    assert other != text and len(other.split("\n")) == len(text.split("\n"))
    assert "BLOCK" in other and "mask=" in other and "def run(" in other  # what others call keeps its name
    assert "swiglu_kernel" in text and "swiglu_kernel" not in other and other.count("_kernel") == text.count("_kernel")


def test_processes_write_the_same_lines_in_the_same_order(tmp_path):
    examples = list(walks(FIRSTS, 9, np.random.default_rng(2)))
    for workers in (1, 2):
        assert write(tmp_path / f"{workers}.jsonl", examples, str.upper, workers) == 9
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text()


def test_made_up_references_repeat_and_are_lowered(tmp_path):
    rng = np.random.default_rng
    texts = [invented(rng(seed)) for seed in range(5)]
    assert texts == [invented(rng(seed)) for seed in range(5)] and len(set(texts)) == 5
    kernels = []
    for number, text in enumerate(texts):
        (tmp_path / f"invented_{number}.py").write_text(text)
        task = load(tmp_path / f"invented_{number}.py")
        first = first_kernel(task)
        joined = fused(first, task.card(), rng(0))
        kernels.append((first.text.count("@triton.jit"), joined.text.count("@triton.jit")))
    assert all(after <= before for before, after in kernels) and any(after < before for before, after in kernels)


def test_walks_on_made_up_references_are_lessons_alone(tmp_path):
    out = tmp_path / "walks.jsonl"
    counts = exported("--walks", 24, "--invented", 1, "--task", "softmax", "--out", out)
    assert counts["families"].keys() == {"row", "invented"} and counts["splits"] == {"train": counts["examples"]}
    assert {one.task for one in rewarded(read(out))} == {"softmax"} and not rewarded(read(out), ("rmsnorm",))
    with pytest.raises(UserError, match="--walks N"):
        exported(population(tmp_path / "softmax.db"), "--invented", 3, "--out", out)


def test_edits_by_line_numbers():
    assert numbered("a\nb\n") == "@1\na@2\nb"
    assert applied("@1@2\nx\n@3+\ny", "a\nb\nc\nd\n") == "x\nc\ny\nd\n" and applied("@2@2", "a\nb\n") == "a\n"
    assert applied(written("a\nb\nc\n", "b\nd\nc\n"), "a\nb\nc\n") == "b\nd\nc\n"
    assert applied("@1\nx\n@1+@2\ny\n@2", "a\nb\n") == "x\ny\n"
    source = "x = load(a)\ny = x * x\nz = store(y)\n"
    looped = "for i in range(n):\n    x = load(a + i)\n    y = x * x\n    z = store(y)\nagain = load(a)\n"
    assert written(source, looped) == (
        "@0+\nfor i in range(n):\n@1\n    x = load(a + i)\n@2\n    y = x * x\n@3\n    z = store(y)\n@3+@1\nagain = load(a)"
    )
    assert applied(written(source, looped), source) == looped
    for wrong in ("@2@1\nx", "@1@9\nx", "@9+\nx", "@0@1\nx", "@2@2\nx\n@1@1\ny", "x"):
        with pytest.raises(BadLines):
            applied(wrong, "a\nb\n")


LINES = st.lists(st.sampled_from(["a = b", "a = b + c", "  a = b", "c", "", "f(a, b)"]), min_size=1, max_size=9)


@given(LINES, LINES)
@settings(max_examples=200, deadline=None)
def test_an_edit_makes_its_child_but_for_blank_lines(old, new):
    parent, child = "\n".join([*old, "end"]) + "\n", "\n".join([*new, "end"]) + "\n"
    if parent != child:
        made = applied(written(parent, child), parent)
        assert [one for one in made.split("\n") if one] == [one for one in child.split("\n") if one]


def test_reasoning_is_what_stands_around_an_edit():
    block = f"{SEARCH}\na\n{DIVIDE}\nb\n{REPLACE}"
    assert reasoning_of(f"Why.\n{block}\nSo.\n```python\nx\n```") == "Why.\nSo."
    assert exporting.reasoning_in((Call("m", messages="torn"), Call("m"))) == ""
    calls = [
        Call("m", messages=pack({}, {"role": "assistant", "content": said}))
        for said in (f"Why.\n{block}", f"GIVE UP: no `{SEARCH}` fits", f"{SEARCH} torn")
    ]
    assert exporting.reasoning_in(calls) == "Why."


def test_the_reward_as_a_function_of_other_trainers():
    text = FIRSTS[0][1].text
    action = json.dumps(strategy_data(Strategy("hoist", "reordering")))
    said = ["no code", [{"role": "assistant", "content": "none"}]]
    with JudgedReward(parts_of("binary")) as reward:
        assert reward([], said, task="swiglu", parent=[text, text], action=action) == [0.0, 0.0]
        assert reward.__name__ and reward.parts.form == 0.0
        with pytest.raises(UserError, match="action"):
            reward([], ["x"], task="swiglu", parent=text, action="?")
        with pytest.raises(UserError, match="no column 'task'"):
            reward([], ["x"])


def test_the_command_trains_and_goes_on(tmp_path):
    write(tmp_path / "edits.jsonl", kept(EXAMPLES, Wanted(), ("rotary",)))
    common = [str(tmp_path / "edits.jsonl"), "--out", str(tmp_path / "run"), "--size", "tiny", "--device", "cpu",
              "--most", "100", "--asked", "2", "--samples", "1", "--groups", "2", "--answers", "2", "--batch", "2"]  # fmt: skip
    first = CliRunner().invoke(cli, ["train", "coder", *common, "--sft-steps", "2", "--grpo-steps", "0"])
    assert first.exit_code == 0 and "sft 1:" in first.stdout and (tmp_path / "run" / "coder.pt").exists(), first
    again = CliRunner().invoke(cli, ["train", "coder", *common, "--sft-steps", "2", "--grpo-steps", "1", "--json"])
    data = json.loads(again.stdout)
    assert data["ended"] and data["stage"] == "done" and data["after"]["requests"] == 2
    told = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert [one["stage"] for one in told if "reward" in one] == ["held-out", "grpo", "held-out"]
    wrong = CliRunner().invoke(cli, ["train", "coder", *common, "--part", "speed"])
    assert isinstance(wrong.exception, UserError) and "NAME=VALUE" in str(wrong.exception)
    for extra, said in (
        (["--model", "scratch:"], "names no file"),
        (["--apart"], "name these with --task"),
        (["--apart", "--task", "swiglu", "--model", "some/model"], "without those examples"),
    ):
        found = CliRunner().invoke(cli, ["train", "coder", *common, *extra])
        assert isinstance(found.exception, UserError) and said in str(found.exception), found
