"""Pictures and documents: what is drawn is there, and what others wrote stays text."""

from __future__ import annotations

from xml.etree import ElementTree

from evo_kernel.observe import document, pictures

HOSTILE = "</script><script>alert(1)</script> \u202e ]]> & \"'\x00"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_svg_is_xml_whatever_names_hold() -> None:
    root = parsed(pictures.svg(pictures.gains([(HOSTILE, 2.0), ("$x_", 2.0)])))
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


def test_documents_escape_everything() -> None:
    blocks = [
        document.Heading(HOSTILE), document.Paragraph(HOSTILE), document.Table((HOSTILE,), [(HOSTILE,)]),
        document.Code(HOSTILE + "\n```\n+x", "diff", HOSTILE), document.Figure(lambda: pictures.gains([(HOSTILE, 2.0)]), HOSTILE),
    ]  # fmt: skip
    page = document.html(HOSTILE, blocks)
    assert "\x00" not in page + document.markdown(blocks) and "\u202e" not in page + document.markdown(blocks)
    assert "<script" not in page and "default-src 'none'" in page
    text = document.markdown(blocks)
    fenced = text.split("````")[1]
    assert "<script" not in text.replace(fenced, "") and "```" in fenced  # code stays as it is, inside a longer fence
