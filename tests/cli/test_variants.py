"""Knob settings on the command line: read, checked against the sources, written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo_kernel.app.variants import settings_of, variants_of
from evo_kernel.errors import UserError
from evo_kernel.types import Source
from tests.support.commands import evo, told
from tests.support.small_tasks import small_softmax

TUNED = Source("BLOCK = 64\nother = 2\nWARPS = 4\n")
LISTED = Source("BLOCK = 64\n@triton.autotune([a, b], key=[])\n@triton.jit\ndef k(x):\n    pass\n")


def test_each_setting_is_written_into_each_file(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text('{"BLOCK": 128}\n\n{}\n')
    settings = settings_of(["BLOCK=32, WARPS=8"], None)
    (one,) = variants_of([("a.py", TUNED)], settings)
    assert one.source.text == "BLOCK = 32\nother = 2\nWARPS = 8\n" and one.name == "a.py BLOCK=32 WARPS=8"
    found = variants_of([("a.py", TUNED), ("b.py", LISTED)], settings_of((), file))
    assert [one.name for one in found] == ["a.py BLOCK=128", "a.py", "b.py BLOCK=128", "b.py"]
    assert found[1].source == TUNED and found[2].as_data() == {"file": "b.py", "setting": {"BLOCK": 128}}
    file.write_text('[{"BLOCK": 16, "k.config": 1}]')
    (one,) = variants_of([("b.py", LISTED)], settings_of((), file))
    assert "BLOCK = 16" in one.source.text and "([a, b])[1:2]" in one.source.text
    assert [one.name for one in variants_of([("a.py", TUNED), ("b.py", LISTED)], ())] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "holds no list of settings. Write a JSON list of objects, or one object a line"),
        ("[3]", "holds no list of settings"),
        ('{"BLOCK": 1', "It holds a JSON list of objects"),
        ('{"BLOCK": 1}\n{"BLOCK": "many"}', "setting 2: a knob's value is a whole number"),
        ('{"BLOCK": 1.5}', "setting 1: a knob's value is a whole number"),
        ('{"BLOCK": true}', "setting 1: a knob's value is a whole number"),
        ("[" * 100_000, "It holds a JSON list of objects"),
        ('{"BLOCK": ' + "9" * 5000 + "}", "It holds a JSON list of objects"),
    ],
)
def test_a_wrong_file_of_settings_says_what_to_write(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(UserError, match=says):
        settings_of((), file)


def test_a_knob_that_a_file_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(UserError, match=r"b.py has no knob WARPS; it has BLOCK, k.config. A knob is an upper-case"):
        variants_of([("a.py", TUNED), ("b.py", LISTED)], settings_of(["WARPS=8"], None))
    with pytest.raises(UserError, match="a knob's value is a whole number: NAME=NUMBER"):
        settings_of(["BLOCK"], None)
    with pytest.raises(UserError, match="of at most 40 digits"):
        settings_of(["BLOCK=" + "9" * 5000], None)


def test_verify_judges_every_setting_and_names_it(tmp_path: Path) -> None:
    task = small_softmax(tmp_path, {"check": [{"m": 3, "n": 65}], "search": [{"m": 32, "n": 128}]}).path.parent
    (tmp_path / "settings").write_text('{"BLOCK": 128}\n{"BLOCK": 96}\n')
    asked = ("verify", task / "seed.py", "--task", task, "--device", "cpu", "--settings", tmp_path / "settings")
    good, bad = told(ended := evo(*asked, "--json"))
    assert ended.exit_code == 1 and good["file"] == bad["file"] == str(task / "seed.py")
    assert (good["setting"], good["status"]) == ({"BLOCK": 128}, "passed") and good["score"] > 0
    assert (bad["setting"], bad["status"]) == ({"BLOCK": 96}, "build_error")
