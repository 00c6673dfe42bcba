"""Cases that were judged: the manifest's, and what an operator promises because of them."""

from __future__ import annotations

import torch

from evo_kernel.export.package import JudgedCase, Tensor, argument_types, judged, layouts, output_shapes
from evo_kernel.export.shipped import _layouts
from evo_kernel.types import CaseKind


def dense(*shape: int) -> Tensor:
    return Tensor("float32", shape, torch.empty(shape, device="meta").stride())


def case(name: str, inputs: tuple, outputs: tuple, us: float | None = None) -> JudgedCase:
    return JudgedCase(name, CaseKind.SEARCH, {}, inputs, ({"value": 1},), outputs, "a", us)


CASES = [case(n, (dense(m, 64), dense(64), 2), (dense(m),)) for n, m in (("small", 3), ("large", 1000))]


def test_of_two_that_take_the_same_the_timed_one_comes_first() -> None:
    made = judged([CASES[0], case("timed", (), (), 12.0)])
    assert [(one["name"], one["us"], one["inputs"]) for one in made] == [
        ("timed", 12.0, [{"value": 1}]),
        ("small", None, [{"value": 1}]),
    ]


def test_outputs_are_laid_out_as_the_kernels_make_them() -> None:
    last = Tensor("float32", (2, 3, 4, 5), torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last).stride())
    some = [case("a", (dense(2),), (last, dense(2, 3)))]
    assert layouts(some) == [[0, 2, 3, 1], None]
    made = torch.empty_strided((2, 3, 4, 5), _layouts.dense_strides((2, 3, 4, 5), [0, 2, 3, 1]))
    assert made.is_contiguous(memory_format=torch.channels_last) and _layouts.lies_in(made, [0, 2, 3, 1])
    mixed = [*some, case("b", (dense(2),), (dense(2, 3, 4, 5), dense(2, 3)))]
    assert layouts(mixed) == [None, None]


def test_shapes_of_outputs_follow_from_inputs_where_the_reference_cannot_say() -> None:
    assert output_shapes(CASES) == [("float32", [[0, 0]])]
    assert output_shapes([*CASES, case("odd", (dense(5, 64), dense(64), 2), (dense(6),))]) is None


def test_an_operator_takes_the_numbers_of_all_cases() -> None:
    assert argument_types(CASES) == ["Tensor", "Tensor", "int"]
    assert argument_types([*CASES, case("half", (dense(5, 64), dense(64), 0.5), ())]) == ["Tensor", "Tensor", "Scalar"]
    called = []
    name = "evo_kernel_tests::numbers"
    operator = torch.library.custom_op(name, called.append, mutates_args=(), schema="(Scalar x) -> ()")
    for number in (2, 2.0, True):
        operator(number)
    assert list(map(repr, called)) == ["2", "2.0", "True"]  # what a case is found by
