import pytest
import torch

from evo_kernel.fitness.correctness import regimes
from evo_kernel.tasks.loading import load


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_regime_keeps_everything_but_the_values(regime, dtype):
    x = torch.randn(6, 10).to(dtype).t()
    labels = torch.arange(6)
    changed, same_labels, scale = regimes.apply(regime, (x, labels, 0.5))
    assert (changed.shape, changed.dtype, changed.stride()) == (x.shape, x.dtype, x.stride())
    assert same_labels is labels and scale == 0.5
    assert torch.isfinite(changed.double()).all()


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_an_expanded_tensor_stays_one(regime):
    x = torch.randn(1, 10).expand(6, 10)
    (changed,) = regimes.apply(regime, (x,))
    assert (changed.shape, changed.stride()) == (x.shape, x.stride())
    assert changed.unique(dim=0).shape[0] == 1


def test_uneven_inputs_are_large_where_a_draw_says():
    a, b = regimes.apply("uneven", (torch.ones(5, 64), torch.ones(64, 3)), seed=7)
    assert torch.equal(a[0].argsort(), b[:, 0].argsort())  # terms of a product, too
    assert regimes.apply("uneven", (torch.ones(0, 1),))[0].numel() == 0
    task = load("softmax")
    draws = [regimes.drawn(task, task.case("m3-n1031"), seed, "uneven", "cpu")[0] for seed in range(20)]
    assert len({int(x.abs().sum(0).argmax()) for x in draws}) > 10
    sizes = regimes.apply("uneven", (torch.ones(1 << 16),), seed=7)[0]
    near = sizes[int(sizes.argmax()) - 8 :][:17].sort().values
    assert near[-1] == 2**17 and near[-2] < 2**17 / 8  # what is near the largest does not tell of it


def test_few_elements_are_large_and_all_others_are_as_drawn():
    x, zeros = torch.randn(8, 500).sign().half(), torch.zeros(8, 500)
    for regime, count in (("one large", 1), ("one large a row", 8)):
        draws = [regimes.apply(regime, (x, zeros, x[0]), seed) for seed in range(20)]
        for changed, filled, row in draws:
            other = changed != x
            assert int(other.sum()) == count and (changed[other].abs() == 65504 / 4).all()
            assert int((filled == 2**15).sum()) == count == int((filled != 0).sum())
            assert int(other.any(1).sum()) == count and int((row != x[0]).sum()) == 1
        assert len({int((changed - x)[-1].abs().argmax()) for changed, *_ in draws}) > (10 if count > 1 else 1)
        assert not any(torch.equal(changed != x, filled != 0) for changed, filled, _ in draws)  # each its own places
    assert regimes.apply("one large", (torch.ones(0, 3), torch.ones(())))[1] == 2**17


def test_one_input_is_uneven_while_all_others_are_as_drawn():
    inputs = [torch.randn(8, 50) for _ in range(5)]
    for first, regime in enumerate(regimes.APART):
        seen = set()
        for seed in range(20):
            both = zip(regimes.apply(regime, inputs, seed), inputs, strict=True)
            (one,) = (place for place, (changed, drawn) in enumerate(both) if not torch.equal(changed, drawn))
            seen.add(one)
        assert seen == {*range(first, 5, 2)}
        assert regimes.apply(regime, inputs[:1])[0] is not inputs[0] or first
    task = load("softmax")
    assert regimes.others(task, task.cases[0]) == regimes.OTHERS
    task = load("linear_gelu")
    assert regimes.others(task, task.cases[0]) == regimes.OTHERS + regimes.APART


def test_what_each_regime_does():
    x = torch.randn(1000)

    def of(regime):
        return regimes.apply(regime, (x,))[0]

    assert torch.equal(of("nominal"), x)
    assert torch.equal(of("large"), x * 64)
    steps = (of("uneven") / x).sort(descending=True).values
    assert torch.allclose(steps, 2**17 / torch.arange(1, 1001))
    filled = regimes.apply("uneven", (torch.zeros(3, 4000, dtype=torch.float16),))[0]
    assert filled.min() == 0.25 / 64 and filled.flatten().sort().values[-3:].tolist() == [8, 8, 16]
    assert of("positive").min() >= 0
    assert not of("zeros").any()
    assert of("ties").unique().numel() < 300 and of("ties")[torch.arange(1000) % 3 != 0].unique().numel() < 20
    assert int((of("ties") * 16 % 1 == 0.5).sum()) > 10  # half-way between steps
    assert torch.allclose(of("tiny"), x * 1e-15)
    tiny = torch.finfo(torch.float32).smallest_normal
    below = (of("denormals").abs() < tiny) & (of("denormals") != 0)
    assert 300 < int(below.sum()) < 400


def test_float64_keeps_its_precision():
    x = torch.randn(100, dtype=torch.float64)
    assert torch.equal(regimes.apply("positive", (x,))[0], x.abs())


def test_a_confirmation_takes_every_regime():
    assert set(regimes.CONFIRM) == set(regimes.REGIMES)
    assert set(regimes.SEARCH) <= set(regimes.REGIMES)


SIGNS = {
    "one sign": (-1, 1, -1),
    "other sign": (1, -1, 1),
    "signs of pairs": (-1, -1, 1),
    "other signs of pairs": (1, 1, -1),
    "negative": (-1, -1, -1),
}


@pytest.mark.parametrize("regime", SIGNS)
def test_one_sign_changes_what_is_drawn_with_both(regime):
    drawn, positive = torch.randn(3, 1000), torch.rand(1000)
    *changed, same = regimes.apply(regime, (*drawn, positive))
    for one, was, sign in zip(changed, drawn, SIGNS[regime], strict=True):
        assert torch.allclose(one * sign / 64, was.abs() + 2 * was.square().mean().sqrt())
    assert same is positive


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_integers_of_both_signs_get_one(regime, dtype):
    x = torch.randint(-90, 90, (1000,), dtype=dtype)
    places, labels = torch.arange(1000), torch.randint(0, 5, (1000,)).masked_fill(torch.rand(1000) < 0.5, -1)
    changed, *same = regimes.apply(regime, (x, places, labels))
    assert same[0] is places and same[1] is labels
    if regime not in SIGNS:
        assert changed is x
        return
    assert set(changed.tolist()) <= set(x.tolist()) and changed.dtype == dtype
    assert (changed < 0).all() if SIGNS[regime][0] < 0 else (changed > 0).all()


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_marks_stay_and_others_change_as_without_them(regime, dtype):
    lowest = torch.finfo(dtype).min
    marks = torch.tensor([-torch.inf, torch.inf, torch.nan, lowest, lowest / 2], dtype=dtype)
    x = torch.cat([torch.randn(1000).to(dtype), marks.repeat(300)])
    (alone,), (marked,) = regimes.apply(regime, (x[:1000],)), regimes.apply(regime, (x,))
    assert torch.equal(marked[1000:].nan_to_num(7.0), marks.repeat(300).nan_to_num(7.0))
    assert torch.isfinite(marked[:1000].double()).all()
    if regime not in ("uneven", "one large", "one large a row", *regimes.APART):  # by places
        assert torch.equal(marked[:1000], alone)
