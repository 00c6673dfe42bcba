"""What is told of a coder's steps, and the picture of them."""

import json

import pytest

from benchmarks.coder_curve import picture, smoothed, steps_of, trend

LINES = [
    json.dumps({"stage": "sft", "step": 1, "loss": 2.0}),
    json.dumps({"stage": "held-out", "step": 0, "reward": 0.2, "right": 0.1}),
    *(json.dumps({"stage": "grpo", "step": n, "reward": 0.1 * n, "right": 0.05 * n}) for n in (1, 2, 2, 3, 4)),
    json.dumps({"stage": "grpo", "step": 5, "reward": 9.0, "right": 0.0}),
    json.dumps({"stage": "grpo", "step": 4, "goes_on_after_s": 3.0}),
    json.dumps({"stage": "grpo", "step": 5, "reward": -0.2, "right": 0.0}),
    '{"stage": "grpo", "step": 6, "reward": NaN, "right": NaN}',
    "",
]


def test_a_step_is_told_once_and_drawn_in_its_place():
    steps = steps_of(LINES)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5] and steps[-1]["reward"] == -0.2
    (axes,) = picture(steps).axes
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert drawn[1] == [[step["step"], step["reward"]] for step in steps] and len(drawn) == 4


def test_a_trend_is_what_shuffles_seldom_have():
    rising, chance = trend([1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert rising == pytest.approx(1.0) and chance < 0.001
    flat, often = trend([3.0, 1.0, 4.0, 1.0, 5.0, 1.0, 3.0])
    assert abs(flat) < 0.4 and often > 0.1
    assert trend([1.0, 1.0]) == (0.0, 1.0)
    assert smoothed([1.0, 3.0, 5.0]) == [1.0, 2.0, 3.0]
