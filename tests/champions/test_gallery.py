"""The gallery: what champions claim is in the data beside them, and who computes the same starts from them."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path

import pytest

from evo_kernel.app import compose
from evo_kernel.app.session import gallery_notes
from evo_kernel.champions import champion_named, champions
from evo_kernel.champions.matching import matching
from evo_kernel.config import Config, load_config
from evo_kernel.errors import ConfigError, UserError
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind, Source
from operators.knowledge.base import KnowledgeBase
from tests.support.commands import evo, told


@pytest.mark.parametrize("champion", champions(), ids=lambda one: one.name)
def test_a_champion_says_what_it_was_verified_for(champion):
    task = load(champion.name)
    assert tuple(champion.takes) == task.input_names
    sizes = [case.sizes for case in task.cases]
    assert {name: [min(s[name] for s in sizes), max(s[name] for s in sizes)] for name in sizes[0]} == champion.ranges
    confirm = [dict(case.sizes) for case in task.cases_of(CaseKind.CONFIRM)]
    gains = []
    for case in champion.hidden:
        assert {name: case[name] for name in champion.ranges} in confirm
        assert case["baseline"] in {*task.baselines, "torch.compile"}
        gains.append(case["baseline_us"] / case["us"])
    found = champion.confirmed
    assert found["low"] - 0.01 < min(gains) < max(gains) < found["high"] + 0.01
    assert math.exp(sum(map(math.log, gains)) / len(gains)) == pytest.approx(found["score"], rel=0.02)
    assert found["gpu"] and re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert all(word in champion.docstring for word in ("Mechanism\n---", "Measured\n---", "Dead ends\n---"))
    assert champion.function in {one.name for one in ast.parse(champion.text).body if isinstance(one, ast.FunctionDef)}


def patched(before: list[str], diff: str) -> list[str]:
    """The lines that a unified difference makes of others."""
    after, at = list[str](), 0
    for line in diff.split("\n")[2:]:
        if hunk := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            start = int(hunk[1]) - (hunk[2] != "0")
            after, at = [*after, *before[at:start]], start
        elif line[0] == "+":
            after.append(line[1:])
        else:
            assert before[at] == line[1:]
            after, at = [*after, *([line[1:]] if line[0] == " " else [])], at + 1
    return [*after, *before[at:]]


def code(text: str) -> str:
    """Without the docstring and comments."""
    tree = ast.parse(text)
    return ast.unparse(tree.body[1:] if ast.get_docstring(tree) else tree)


@pytest.mark.parametrize("file", sorted({one.file for one in champions()}), ids=lambda file: file.stem)
def test_lineages_lead_to_the_kernel_that_ships(file):
    ends = []
    for lineage in next(one for one in champions() if one.file == file).lineages:
        lines: list[str] = []
        for step in lineage["path"]:
            lines = patched(lines, step["diff"])
        ends.append("\n".join(lines) + "\n")
        assert Source(ends[-1]).sha256 == lineage["source_sha256"], lineage["task"]
        assert lineage["written_by"] and lineage["root"]
        assert lineage["cost"].keys() == {"evaluations", "gpu_s", "dollars"}
        assert load(lineage["task"]).identity == lineage["task_sha256"], "its claims are about another task"
    assert code(file.read_text()) in map(code, ends)


HAND_WRITTEN = """
import math
import torch

CASES = {{"check": [{{"h": 2, "n": 65}}], "search": [{{"h": 8, "n": {length}}}]}}

def inputs(case, generator, device):
    def draw(h):
        return torch.randn(1, h, case["n"], {d}, generator=generator, device=device, dtype=torch.{dtype})
    return draw({shared}), draw(case["h"]), draw({shared})

def reference(keys, queries, values):
    keys, values = (x.repeat_interleave(queries.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1]) * {scale}
    if {causal}:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ values
"""
DEFAULTS = {"length": 2048, "d": 64, "dtype": "bfloat16", "shared": 'case["h"]', "scale": 1.0, "causal": True}


def hand_written(folder: Path, **options: object):
    (folder / "mine.py").write_text(HAND_WRITTEN.format(**DEFAULTS | options))
    return load(folder / "mine.py")


@pytest.mark.parametrize(
    ("options", "name", "call", "beyond"),
    [
        ({}, "attention", "inputs[1], inputs[0], inputs[2]", ()),
        ({"causal": False}, "attention_full", "inputs[1], inputs[0], inputs[2]", ()),
        ({"length": 32768}, "attention_causal", "inputs[1], inputs[0], inputs[2]", ()),
        ({"shared": 2}, "gqa", "inputs[1], inputs[0], inputs[2], 1", ("h 2",)),
    ],
)  # fmt: skip
def test_a_function_of_ones_own_starts_from_the_champion_that_computes_it(tmp_path, options, name, call, beyond):
    match = matching(hand_written(tmp_path, **options))
    assert match is not None and (match.champion.name, match.beyond) == (name, beyond)
    source = match.source.text
    assert source.endswith(
        f"champion = {match.champion.function}\n\n\ndef run(*inputs):\n    return champion({call})\n"
    )
    assert source.startswith(match.champion.text)


@pytest.mark.parametrize("options", [{"scale": 2.0}, {"d": 32}, {"dtype": "float16"}])
def test_another_function_dtype_or_size_does_not(tmp_path, options):
    assert matching(hand_written(tmp_path, **options)) is None


EXPERTS = """
import torch

CASES = {"check": [{"t": 37, "n": 40}, {"t": 6, "n": 24}], "search": [{"t": 4096, "n": 512}]}
HOST_KNOWN = {0}

def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    ends = torch.randint(0, case["t"], (3,), **draw).sort().values
    starts = torch.cat([torch.zeros(1, device=device), ends, torch.full((1,), case["t"], device=device)])
    return starts.to(torch.INTEGERS), torch.randn(4, 32, case["n"], dtype=torch.bfloat16, **draw), torch.randn(
        case["t"], 32, dtype=torch.bfloat16, **draw)

def reference(starts, weights, rows):
    return torch.cat([part @ weight for part, weight in zip(rows.split(starts.diff().tolist()), weights)])
"""


def test_a_champion_of_tf32_products_is_not_for_ieee_precision():
    assert matching(load("conv2d")) is None
    found = matching(load("conv2d_tf32"))
    assert found and found.champion.name == "conv2d_tf32"


def test_integers_belong_to_what_a_champion_takes(tmp_path):
    for integers, order in (("int32", (2, 1, 0)), ("int64", None)):
        (tmp_path / f"{integers}.py").write_text(EXPERTS.replace("INTEGERS", integers))
        found = matching(load(tmp_path / f"{integers}.py"))
        assert (found and (found.champion.name, found.arguments)) == (order and ("grouped_matmul", order))


@pytest.mark.parametrize("name", [one.name for one in champions()])
def test_the_task_itself_gets_the_file_as_it_was_judged(name):
    match, champion = matching(load(name)), champion_named(name)
    assert match is not None and match.champion == champion and not match.beyond
    assert match.source.text.removesuffix(f"\n\nrun = {champion.function}\n") == champion.text
    assert compose._champion(load(name)) == match.source


def test_the_gallery_is_offered_and_planted_only_where_it_computes_the_same(tmp_path):
    mine, softmax = hand_written(tmp_path), load("softmax")
    (offer,) = gallery_notes(Config(), mine)
    assert (
        "`--start-from gallery`" in offer
        and "1.34x the fastest baseline (cudnn or eager or torch.compile), NVIDIA H200" in offer
    )
    config = compose.lasting(load_config(None, ["start_from=gallery"]))
    assert config.start_from == "gallery" and Config.model_validate(config.model_dump(mode="json")) == config
    assert gallery_notes(config, mine)[0].startswith("starts from the champion attention")
    assert gallery_notes(config, softmax) == []
    with pytest.raises(ConfigError, match="no champion computes what softmax does"):
        compose._champion(softmax)


def test_commands_tell_what_the_data_says(tmp_path):
    hand_written(tmp_path)
    listed = json.loads(evo("champions", "--json").stdout)
    assert [one["name"] for one in listed] == [one.name for one in champions()]
    lines = evo("champions").stdout
    assert all(one.score_text in lines and one.ranges_text in lines and one.spec in lines for one in champions())
    assert "gqa" not in evo("champions", tmp_path / "mine.py").stdout
    assert json.loads(evo("champions", "softmax", "--json").stdout) == []
    shown = evo("champions", "show", "gqa").stdout
    assert champion_named("gqa").docstring in shown and "dollars not recorded" in shown
    assert len(told(evo("champions", "show", "gqa", "--json"))["lineages"]) == 4
    with pytest.raises(UserError, match="no champion 'gpa'"):
        evo("champions", "verify", "gpa")


def test_prompts_of_the_family_find_what_a_champion_found_out():
    found = KnowledgeBase(api=False).search(f"attention {load('attention').description}", 4)
    assert {"evo-kernel/champions/attention/attention.py#" + part for part in ("mechanism", "dead-ends")} <= {
        passage.source for passage in found
    }
