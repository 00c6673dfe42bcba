"""Pictures, documents and merges: what is drawn is there, and what others wrote stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_kernel.errors import UserError
from evo_kernel.observe import ancestry, charts, document, scene
from evo_kernel.observe.merging import merge, without_edit

HOSTILE = "</script><script>alert(1)</script> \u202e ]]> & \"'\x00"


def node(candidate: int, parent: int | None = None, score: float | None = 1.0, name: str = "tile") -> dict:
    return {"candidate": candidate, "parent": parent, "strategy": name, "operator": "mtmc", "score": score,
            "status": "passed" if score else "wrong", "reason": name}  # fmt: skip


TREE = [node(1), node(2, 1), node(3, 1, None), node(4, 2), node(5, 2), node(6, 3, None), node(7, 5), node(8)]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_what_led_nowhere_is_folded_and_counted() -> None:
    drawn = ancestry.ancestry(TREE, leading=[4, 7], path=[1, 2, 5, 7], donors=[(3, 4), (2, 7)], whole=False)
    assert [one["candidate"] for one in drawn.nodes] == [1, 2, 4, 5, 7]
    assert drawn.folded == {1: 2} and list(drawn.donors) == [(2, 7)]
    whole = ancestry.ancestry(TREE, [4, 7], [1, 2, 5, 7], [], whole=True)
    assert len(whole.nodes) == 8 and whole.folded == {}
    many = [node(number, number - 1 or None) for number in range(1, ancestry.DRAWN + 2)]
    with pytest.raises(UserError, match=r"too many to draw: leave out --all"):
        ancestry.ancestry(many, [], [], [], whole=True)


def test_what_lies_behind_an_area_is_seen() -> None:
    area = scene.Area([(0, 0), (10, 0), (10, 5)], "best")
    (drawn,) = parsed(scene.svg(scene.Scene(20, 10, "an area", [area]), alone=False))
    assert drawn.get("points") == "0.0,0.0 10.0,0.0 10.0,5.0" and drawn.get("class") == "f-best"
    assert 0 < float(drawn.get("fill-opacity", "1")) < 1


def test_no_two_candidates_share_a_place_and_the_path_is_straight() -> None:
    whole = ancestry.ancestry(TREE, [], [1, 2, 5, 7], [], whole=True)
    at = ancestry.places(whole)
    assert len(set(at.values())) == len(TREE)
    assert len({at[candidate][1] for candidate in (1, 2, 5, 7)}) == 1
    assert all(at[one["candidate"]][0] > at[one["parent"]][0] for one in TREE if one["parent"])


def test_a_deep_lineage_is_drawn_without_recursion() -> None:
    deep = [node(number, number - 1 or None) for number in range(1, 2500)]
    assert len(ancestry.places(ancestry.ancestry(deep, [2499], [], [], whole=False))) == 2499


def test_svg_is_xml_whatever_names_hold() -> None:
    drawn = ancestry.ancestry([node(1, name=HOSTILE), node(2, 1, name=HOSTILE)], [2], [1, 2], [], whole=False)
    root = parsed(scene.svg(ancestry.scene(drawn, "modeled")))
    assert not list(root.iter("{http://www.w3.org/2000/svg}script")) and "\u202e" not in "".join(root.itertext())
    assert len([box for box in root.iter("{http://www.w3.org/2000/svg}rect") if box.get("data-key")]) == 2


def test_the_page_runs_its_own_script_alone() -> None:
    drawn = ancestry.ancestry([node(1, name=HOSTILE)], [1], [1], [], whole=False)
    page = ancestry.page(drawn, HOSTILE, "modeled")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page and "innerHTML" not in page
    assert json.loads(scripts[0][1])["1"]["strategy"] == HOSTILE
    assert not re.search(r"""(src|href)=["']""", page) and "//" not in page.replace("http://www.w3.org/2000/svg", "")


def test_charts() -> None:
    picture = charts.trajectory([(n, 1.0) for n in range(9000)], [(1, 1.0), (50, 2.5)], "candidates")
    assert sum(isinstance(shape, scene.Box) for shape in picture.shapes) <= 2 * charts.DOTS + 1
    line = next(shape for shape in picture.shapes if isinstance(shape, scene.Line) and shape.kind == "best")
    assert len(line.points) == 4 and line.points[1][1] == line.points[0][1]  # a staircase
    parsed(scene.svg(picture))
    parsed(scene.svg(charts.trajectory([], [], "hours")))
    bars = charts.gains([("a", 2.0, 1.5), ("b", 0.9, None), ("c", None, None)])
    boxes = [shape for shape in bars.shapes if isinstance(shape, scene.Box)]
    assert [box.kind for box in boxes] == ["gain", "gain", "loss"] and boxes[0].width > boxes[1].width > boxes[2].width


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 3.7), (0.9, 1.1), (0, 0.004), (0, 123456), (5, 5)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    found = charts.ticks(low, high)
    assert len(found) <= 8 and all(low - 1e-6 <= value <= high + 1e-6 or low == high for value in found)


def test_documents_escape_everything() -> None:
    blocks = [
        document.Heading(HOSTILE), document.Paragraph(HOSTILE), document.Table((HOSTILE,), [(HOSTILE,)]),
        document.Code(HOSTILE + "\n```\n+x", "diff", HOSTILE), document.Figure(charts.gains([(HOSTILE, 2.0, None)]), HOSTILE),
    ]  # fmt: skip
    page = document.html(HOSTILE, blocks)
    assert "<script" not in page and "default-src 'none'" in page
    text = document.markdown(blocks)
    fenced = text.split("````")[1]
    assert "<script" not in text.replace(fenced, "") and "```" in fenced  # code stays as it is, inside a longer fence


def test_an_edit_is_taken_out_where_later_ones_do_not_need_it() -> None:
    first = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
    second = first.replace("a = 1", "a = 10")
    third = second.replace("e = 5", "e = 50")
    fourth = third.replace("a = 10", "a = 100")
    assert without_edit([first, second, third], 1) == first.replace("e = 5", "e = 50")
    assert without_edit([first, second, third], 2) == second
    assert without_edit([first, second, third, fourth], 1) is None
    assert merge("a\nb\n", "a\nx\nb\n", "a\ny\nb\n") is None and merge("a\n", "b\n", "b\n") == "b\n"


@given(st.lists(st.sampled_from("abc\n"), max_size=30), st.lists(st.sampled_from("abc\n"), max_size=30))
def test_a_merge_with_nothing_is_the_other_change(base: list[str], other: list[str]) -> None:
    one, two = "".join(base), "".join(other)
    assert merge(one, two, one) == two and merge(one, one, two) == two and merge(one, two, two) == two
