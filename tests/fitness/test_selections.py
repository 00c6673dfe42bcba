"""Indices of equal values: any right ones pass where PyTorch leaves the order open, and no others."""

from dataclasses import replace

import pytest
import torch

from evo_kernel.fitness.correctness import check, error_bounds, regimes
from evo_kernel.fitness.correctness.references import SealedReferences
from evo_kernel.fitness.runners.cpu_references import CpuReferences, LookLimits, _chosen
from evo_kernel.tasks.task import Case, Tolerance
from evo_kernel.types import CaseKind
from tests.fitness.test_check import draw, task_of

TIES = regimes.apply("ties", draw((7, 100)))
K = 8
TOP = task_of(lambda x: torch.topk(x, K, dim=1))


def last_first(x, k=K, dim=1, descending=True):
    """Values and places in order, of equal ones the last first."""
    values, places = torch.sort(x.flip(dim), dim=dim, descending=descending, stable=True)
    return values.narrow(dim, 0, k), (x.shape[dim] - 1 - places).narrow(dim, 0, k)


def passes(task, x, *outputs):
    return check.compare("case", outputs, error_bounds.expect(task, (x,)), task.tolerance).passed


REFERENCES = {
    "topk": (lambda x: torch.topk(x, K).indices, lambda x: last_first(x)[1]),
    "narrow": (lambda x: torch.topk(x, K).indices.to(torch.int32), lambda x: last_first(x)[1].int()),
    "argsort": (lambda x: torch.argsort(x, dim=0), lambda x: last_first(x, 7, 0, descending=False)[1]),
    "part": (lambda x: x.sort(descending=True)[1][:, 1:K].t(), lambda x: last_first(x)[1][:, 1:].t()),
    "copy": (lambda x: x.argsort(0)[:4].contiguous(), lambda x: last_first(x, 4, 0, descending=False)[1]),
    "out": (lambda x: torch.topk(x, K, out=(x.new_empty(0), torch.empty(0, dtype=torch.int64)))[1],
            lambda x: last_first(x)[1]),
    "median": (lambda x: torch.median(x, 1).indices, lambda x: last_first(x, 50, 1, descending=False)[1][:, 49]),
    "kthvalue": (lambda x: torch.kthvalue(x, 3, 1, keepdim=True)[1],
                 lambda x: last_first(x, 3, 1, descending=False)[1][:, 2:]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_any_index_of_an_equal_value_passes(name, dtype):
    reference, kernel = REFERENCES[name]
    x = (4 * TIES[0]).to(dtype)
    task, places = task_of(reference), kernel(x).contiguous()
    assert not torch.equal(places, reference(x))
    assert passes(task, x, places)
    assert not passes(task, x, torch.full_like(places, 7 * 100))
    assert not passes(task, x, -1 - torch.zeros_like(places))


@pytest.mark.parametrize("regime", ["ties", "zeros"])
def test_a_repeated_index_or_one_of_another_value_is_wrong(regime):
    x = regimes.apply(regime, (draw((7, 100))[0],))[0]
    values, places = last_first(x)
    assert passes(TOP, x, values, places)
    repeated = places.clone()
    repeated[2, 1] = places[2, 0]
    first = (x[:, None, :] == values[:, :, None]).int().argmax(-1)
    other = places.clone()
    other[3, 0] = x[3].argmin() if regime == "ties" else 100
    for wrong in (repeated, first, other, torch.zeros_like(places)):
        assert not passes(TOP, x, values, wrong)


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: torch.sort(x, stable=True, descending=True)[1][:, :1],
        lambda x: x.argmax(1, keepdim=True),
        lambda x: x.max(1, keepdim=True).indices,
        lambda x: torch.topk(x, 1).indices + 1 - 1,
        lambda x: torch.topk(x, 1).indices.bitwise_xor_(1).bitwise_xor_(1),
        lambda x: (torch.topk(x, 1).indices, x.mul_(1.0))[0],
    ],
)
def test_what_is_specified_or_computed_with_must_be_equal(reference):
    task, places = task_of(reference), last_first(TIES[0], 1)[1]
    assert passes(task, TIES[0], reference(TIES[0].clone()))
    assert not passes(task, TIES[0], places)


@pytest.mark.parametrize("select", [lambda x: x.topk(3, 1)[1], lambda x: x.argsort(1)[:, :3], lambda x: x.median(1)[1]])
def test_what_equal_values_decide_is_compared_where_inputs_are_nominal(select):
    def counts(places):
        return torch.zeros(100, dtype=torch.int64).index_add(0, places.flatten(), torch.ones(places.numel()).long())

    task, other = task_of(lambda x: (counts(select(x)), x.sum(1))), TIES[0].flip(1)
    mine, theirs, sums = counts(select(TIES[0])), counts(select(other)).flip(0), TIES[0].sum(1)
    assert not torch.equal(mine, theirs)
    distinct = draw((7, 100))[0]

    def is_right(x, is_nominal, *outputs):
        expected = error_bounds.expect(task, (x,), is_nominal=is_nominal)
        return check.compare("case", outputs, expected, task.tolerance, "nominal" if is_nominal else "ties").passed

    assert is_right(TIES[0], False, theirs, sums)
    assert not is_right(TIES[0], False, theirs, sums + 1)
    assert not is_right(TIES[0], True, theirs, sums)
    assert is_right(distinct, False, counts(select(distinct)), distinct.sum(1))
    assert not is_right(distinct, False, counts(select(distinct)).roll(1), distinct.sum(1))


def test_where_few_rows_have_equal_values_the_others_are_compared():
    keys, marks = draw((50, 100))[0], draw((50, 100))[0].exp()
    keys[7, 3] = keys[7, 60] = keys[7].max() + 1

    def moved(keys, marks, change=lambda indices: indices):
        return marks.gather(1, change(keys.sort(1)[1]))

    def is_right(out, reference=moved):
        expected = error_bounds.expect(task_of(reference), (keys, marks), is_nominal=False)
        return check.compare("case", [out], expected, task_of(reference).tolerance, "large").passed

    def flipped(indices, row):
        return torch.cat([indices[:row], indices[row : row + 1, [*range(98), 99, 98]], indices[row + 1 :]])

    assert is_right(moved(keys, marks))
    assert is_right(moved(keys, marks, lambda indices: flipped(indices, 7)))
    assert not is_right(moved(keys, marks, lambda indices: flipped(indices, 8)))
    total = moved(keys, marks) + moved(keys, marks).cumsum(0)
    mine = moved(keys, marks, lambda indices: flipped(indices, 7))
    assert is_right(mine + mine.cumsum(0), lambda keys, marks: moved(keys, marks) + moved(keys, marks).cumsum(0))
    assert not torch.equal(mine + mine.cumsum(0), total)
    computed = moved(2 * keys + 1, marks, lambda indices: flipped(indices, 8))  # their order may be another in a kernel
    assert is_right(computed, lambda keys, marks: moved(2 * keys + 1, marks))


@pytest.mark.parametrize("reference", [lambda x: x.long().max(), lambda x: torch.max(x.long(), x.long() + 999)])
def test_the_largest_integer_is_no_index(reference):
    task, x = task_of(reference), 300 * TIES[0]
    assert passes(task, x, reference(x))
    assert not passes(task, x, reference(x) - 1)


def narrowed(x, bits):
    """float32 cut to fewer bits of fraction: 10 as in TF32, 7 as in bfloat16."""
    return (x.view(torch.int32) & -(1 << 23 - bits)).view(torch.float32)


@pytest.mark.parametrize("seed", [0, 2])
def test_of_values_nearer_than_honest_errors_any_index_passes(seed):
    (x,) = draw((2048, 64), seed=seed)
    (codes,) = draw((64, 512), seed=100 + seed)
    task = task_of(lambda x, codes: (x @ codes).argmax(1))
    tf32 = replace(task, tolerance=replace(task.tolerance, precision="tf32"))
    nearest, cut, narrow = ((narrowed(x, bits) @ narrowed(codes, bits)).argmax(1) for bits in (23, 10, 7))
    assert not torch.equal(cut, nearest)

    def is_right(task, places):
        return check.compare("case", [places], error_bounds.expect(task, (x, codes)), task.tolerance).passed

    assert is_right(tf32, nearest)
    assert is_right(tf32, cut)
    assert not is_right(tf32, narrow)
    assert not is_right(task, cut)


def test_tf32_is_for_products():
    x, w = draw((300, 1024), (1024, 16))
    bits, last = x.view(torch.int32), torch.arange(1023, -1, -1, dtype=torch.int32)
    keys = (torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) & -1024) | last  # places in the last bits of values
    places, product = 1023 - (keys.topk(K, 1).values & 1023).long(), x @ w

    def is_right(reference, *outputs):
        task = task_of(reference, Tolerance(precision="tf32"))
        return check.compare("case", outputs, error_bounds.expect(task, (x, w)), task.tolerance).passed

    assert not is_right(lambda x, w: x.topk(K, 1).indices, places)
    assert not is_right(lambda x, w: (x.topk(K, 1).indices, x @ w), places, product)
    assert is_right(lambda x, w: (x.topk(K, 1).indices, x @ w), x.topk(K, 1).indices, narrowed(x, 10) @ narrowed(w, 10))
    assert not is_right(lambda x, w: (x * 32).round().int(), (narrowed(x, 10) * 32).round().int())
    assert is_right(
        lambda x, w: sum(x[:, k, None] * w[k] for k in range(64)), narrowed(x[:, :64], 10) @ narrowed(w[:64], 10)
    )


def test_nan_and_zeros_of_both_signs_are_equal():
    x = torch.tensor([[0.0, -0.0, float("nan"), float("nan"), -1.0]] * 7)
    task = task_of(lambda x: torch.sort(x, 1).indices)
    assert passes(task, x, last_first(x, 5, 1, descending=False)[1])
    assert not passes(task, x, torch.tensor([[4, 0, 1, 2, 2]] * 7))


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_a_part_and_a_sealed_reference_tell_the_same(small, monkeypatch):
    monkeypatch.setattr("evo_kernel.fitness.correctness.references.SMALL_BYTES", small)
    values, places = last_first(TIES[0])
    expected, some = error_bounds.expect(TOP, TIES), torch.arange(3, 50)
    parts = [_chosen(part, some) for part in expected]
    repeated = places.clone()
    repeated[2, 1] = places[2, 0]
    for given, is_right in ((places, True), (repeated, False)):
        part = [values.flatten()[some], given.flatten()[some]]
        assert check.compare("case", part, parts, TOP.tolerance).passed == is_right
        with SealedReferences("cpu", 1 << 30).open(("case", 1, "ties"), lambda: expected) as opened:
            assert check.compare("case", [values, given], opened, TOP.tolerance).passed == is_right


LARGE = Case("large", CaseKind.SEARCH, {"m": 512})


def test_slices_leave_ties_to_the_whole_reference():
    task = task_of(lambda x: torch.topk(x, K, dim=1))
    object.__setattr__(task, "cases", (Case("small", CaseKind.CHECK, {"m": 4}), LARGE))
    object.__setattr__(
        task, "inputs_function", lambda case, g, device: torch.randn(case["m"], 100, generator=g, device=device)
    )
    references = CpuReferences(task, 60.0, LookLimits(whole_s=0.0))
    places = LARGE, 5, "ties"
    (x,) = references.inputs(places)
    values, right = last_first(x)
    assert references._slices(places, (x,)).may_tie
    assert references.compare_large(places, (x,), [values, right]).passed
    assert not references.compare_large(places, (x,), [values, right[:, :1].expand(-1, K).contiguous()]).passed
