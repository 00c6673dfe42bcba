"""Pictures and documents: what is drawn is there, and what others wrote stays text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from evo_kernel.errors import UserError
from evo_kernel.observe import document, pictures

HOSTILE = "</script><script>alert(1)</script> \u202e ]]> & \"'\x00"


def node(candidate: int, parent: int | None = None, score: float | None = 1.0, name: str = "tile") -> dict:
    return {"candidate": candidate, "parent": parent, "strategy": name, "operator": "mtmc", "score": score,
            "status": "passed" if score else "wrong", "reason": name}  # fmt: skip


TREE = [node(1), node(2, 1), node(3, 1, None), node(4, 2), node(5, 2), node(6, 3, None), node(7, 5), node(8)]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_what_led_nowhere_is_folded_and_counted() -> None:
    drawn = pictures.ancestry(TREE, leading=[4, 7], path=[1, 2, 5, 7], donors=[(3, 4), (2, 7)], whole=False)
    assert [one["candidate"] for one in drawn.nodes] == [1, 2, 4, 5, 7]
    assert drawn.folded == {1: 2} and list(drawn.donors) == [(2, 7)]
    whole = pictures.ancestry(TREE, [4, 7], [1, 2, 5, 7], [], whole=True)
    assert len(whole.nodes) == 8 and whole.folded == {}
    many = [node(number, number - 1 or None) for number in range(1, pictures.DRAWN + 2)]
    with pytest.raises(UserError, match=r"too many to draw: leave out --all"):
        pictures.ancestry(many, [], [], [], whole=True)


def test_no_two_candidates_share_a_place_and_the_path_is_straight() -> None:
    whole = pictures.ancestry(TREE, [], [1, 2, 5, 7], [], whole=True)
    at = pictures.places(whole)
    assert len(set(at.values())) == len(TREE)
    assert len({at[candidate][1] for candidate in (1, 2, 5, 7)}) == 1
    assert all(at[one["candidate"]][0] > at[one["parent"]][0] for one in TREE if one["parent"])


def test_a_deep_lineage_is_drawn_without_recursion() -> None:
    deep = [node(number, number - 1 or None) for number in range(1, 2500)]
    assert len(pictures.places(pictures.ancestry(deep, [2499], [], [], whole=False))) == 2499


def test_svg_is_xml_whatever_names_hold() -> None:
    drawn = pictures.ancestry([node(1, name=HOSTILE), node(2, 1, name=HOSTILE + "$x_")], [2], [1, 2], [], whole=False)
    for picture in (pictures.lineage(drawn, "modeled"), pictures.gains([(HOSTILE, 2.0), ("$x_", 2.0)])):
        root = parsed(pictures.svg(picture))
        assert not list(root.iter("{http://www.w3.org/2000/svg}script")) and "\u202e" not in "".join(root.itertext())
        assert "alert(" in "".join(root.itertext())


def test_charts() -> None:
    (axes,) = pictures.trajectory([(n, 1.0) for n in range(9)], [(1, 1.0), (50, 2.5)], "candidates").axes
    staircase, mark = axes.lines
    assert staircase.get_drawstyle() == "steps-post" and staircase.get_xydata().tolist()[-1] == [50, 2.5]
    assert mark.get_xydata().tolist() == [[50, 2.5]] and len(axes.collections[0].get_offsets()) == 9
    parsed(pictures.svg(pictures.trajectory([], [], "hours")))
    (axes,) = pictures.gains([("a", 2.0), ("b", 0.9), ("c", None)]).axes
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[0] > 0 > widths[1] and len(widths) == 2


def test_a_picture_is_written_by_its_ending(tmp_path) -> None:
    picture = pictures.lineage(pictures.ancestry(TREE, [4, 7], [1, 2, 5, 7], [(2, 7)], whole=False), "modeled")
    pictures.save(picture, tmp_path / "tree.png", "png")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


def test_documents_escape_everything() -> None:
    blocks = [
        document.Heading(HOSTILE), document.Paragraph(HOSTILE), document.Table((HOSTILE,), [(HOSTILE,)]),
        document.Code(HOSTILE + "\n```\n+x", "diff", HOSTILE), document.Figure(lambda: pictures.gains([(HOSTILE, 2.0)]), HOSTILE),
    ]  # fmt: skip
    page = document.html(HOSTILE, blocks)
    assert "<script" not in page and "default-src 'none'" in page
    text = document.markdown(blocks)
    fenced = text.split("````")[1]
    assert "<script" not in text.replace(fenced, "") and "```" in fenced  # code stays as it is, inside a longer fence
