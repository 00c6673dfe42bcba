"""What is kept of the latest used values: as much as fits, and the last one always."""

from evo_kernel.lru_cache import Recent


def test_the_longest_unused_values_go_first_and_the_last_one_stays() -> None:
    kept: Recent[str, str] = Recent(6, len)
    assert [kept.find(name, lambda name=name: 2 * name) for name in ("a", "b", "c")] == ["aa", "bb", "cc"]
    assert kept.find("a", lambda: "made anew") == "aa"
    kept.put("d", "dddd")
    assert list(kept) == ["aa", "dddd"] and "b" not in kept and kept.get("c") is None
    kept.put("a", "a")
    kept.put("e", "e")
    assert list(kept) == ["dddd", "a", "e"]
    kept.put("f", "far too long")
    assert list(kept) == ["far too long"]
    kept.drop("f")
    kept.drop("never kept")
    kept.put("a", "123456")
    assert list(kept) == ["123456"]
