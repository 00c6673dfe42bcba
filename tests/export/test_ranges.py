"""What a package takes: the ranges that verified cases span, and the dispatcher's reading of them."""

from __future__ import annotations

import json

import pytest
import torch

from evo_kernel.export.ranges import Tensor, VerifiedCase, layouts, output_shapes, spans
from evo_kernel.export.shipped import _rules
from evo_kernel.types import CaseKind


def dense(*shape: int) -> Tensor:
    return Tensor("float32", shape, torch.empty(shape, device="meta").stride())


def case(name: str, m: int, n: int, kernel: str = "a") -> VerifiedCase:
    inputs = (dense(m, n), dense(n), 2)
    return VerifiedCase(name, CaseKind.SEARCH, {"m": m, "n": n}, inputs, (dense(m),), kernel)


CASES = [case("small", 3, 64, "a"), case("large", 1000, 4096, "b"), case("wide", 1, 65536, "c")]
(SPAN,) = json.loads(json.dumps(spans(CASES, ["x", "weight", "axis"])))


def drawn(m: int, n: int) -> list:
    return [torch.empty(m, n), torch.empty(n), 2]


def test_a_range_is_what_its_cases_span() -> None:
    assert SPAN["inputs"][0]["sizes"] == [[1, 1000, 1], [64, 65536, 64]]
    assert SPAN["inputs"][0]["elements"] == 1000 * 4096
    assert SPAN["inputs"][2] == {"values": [2]}
    assert SPAN["equal"] == [[[0, 1], [1, 0]]]
    for one in CASES:
        assert _rules.outside(drawn(one.sizes["m"], one.sizes["n"]), SPAN) == ""
    assert _rules.outside(drawn(7, 128), SPAN) == ""


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([torch.empty(3, 65), torch.empty(65), 2], "x has size 65 in dimension 1; verified from 64 to 65536 in multi"),
        ([torch.empty(1001, 64), torch.empty(64), 2], "x has size 1001 in dimension 0; verified from 1 to 1000"),
        ([torch.empty(900, 8192, device="meta"), torch.empty(8192), 2], "x has 7372800 elements; verified up to"),
        ([torch.empty(3, 64), torch.empty(128), 2], "sizes differ that were equal in every verified case: x.shape[1]"),
        ([torch.empty(3, 64).double(), torch.empty(64), 2], "x is float64; verified in float32"),
        ([torch.empty(64, 3).t(), torch.empty(64), 2], "x has strides (1, 3), a layout that was not verified"),
        ([torch.empty(193)[1:].view(3, 64), torch.empty(64), 2], "x does not begin at a multiple of 16 bytes"),
        ([torch.empty(3, 64), torch.empty(64), 3], "axis is 3; verified with 2"),
        ([torch.empty(3, 64), torch.empty(64), True], "axis is True; verified with 2"),
        ([torch.empty(3, 64), torch.empty(1, 64), 2], "weight has 2 dimensions; verified with 1"),
        ([torch.empty(3, 64), 64, 2], "weight is a number"),
        ([torch.empty(3, 64)], "1 inputs where the kernel takes 3"),
    ],
)
def test_anything_else_is_outside_and_why(inputs: list, says: str) -> None:
    assert _rules.outside(inputs, SPAN).startswith(says)


def test_a_layout_with_gaps_is_taken_only_as_it_was() -> None:
    gaps = Tensor("float32", (4, 8), (16, 1))
    (span,) = spans([VerifiedCase("gaps", CaseKind.SEARCH, {}, (gaps,), (dense(4),), "a")], ["x"])
    span = json.loads(json.dumps(span))
    assert _rules.outside([torch.empty(4, 16)[:, :8]], span) == ""
    assert "layout" in _rules.outside([torch.empty(4, 8)], span)


def test_each_size_goes_to_the_champion_of_the_nearest_case() -> None:
    chosen = {n: _rules.nearest(drawn(m, n), SPAN["cases"])["kernel"] for m, n in ((3, 128), (900, 4032), (2, 60032))}
    assert chosen == {128: "a", 4032: "b", 60032: "c"}


def test_cases_of_other_dtypes_or_ranks_are_ranges_of_their_own() -> None:
    half = VerifiedCase("half", CaseKind.SEARCH, {}, (Tensor("float16", (3, 64), (64, 1)), dense(64), 2), (), "a")
    assert [span["inputs"][0]["dtype"] for span in spans([*CASES, half], ["x", "w", "axis"])] == ["float32", "float16"]


def test_outputs_are_laid_out_as_the_kernels_make_them() -> None:
    last = Tensor("float32", (2, 3, 4, 5), torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last).stride())
    some = [VerifiedCase("a", CaseKind.CHECK, {}, (dense(2),), (last, dense(2, 3)), "a")]
    assert layouts(some) == [[0, 2, 3, 1], None]
    made = torch.empty_strided((2, 3, 4, 5), _rules.dense_strides((2, 3, 4, 5), [0, 2, 3, 1]))
    assert made.is_contiguous(memory_format=torch.channels_last) and _rules.lies_in(made, [0, 2, 3, 1])
    mixed = [*some, VerifiedCase("b", CaseKind.CHECK, {}, (dense(2),), (dense(2, 3, 4, 5), dense(2, 3)), "a")]
    assert layouts(mixed) == [None, None]


def test_shapes_of_outputs_follow_from_inputs_where_the_reference_cannot_say() -> None:
    assert output_shapes(CASES) == [("float32", [[0, 0]])]
    odd = VerifiedCase("odd", CaseKind.CHECK, {}, (dense(5, 64), dense(64), 2), (dense(6),), "a")
    assert output_shapes([*CASES, odd]) is None
