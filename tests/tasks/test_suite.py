"""The smaller tasks of the built-in suite: references against independent oracles, flops against counted ones."""

import pytest
import torch
import torch.nn.functional as F

from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind
from tests.tasks.test_families import checks, close, counted, drawn


def agree(got, wanted):
    return all(close(one, other) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("task", "case"), checks("swiglu"))
def test_swiglu_is_its_formula(task, case):
    gate, up = drawn(task, case)
    assert close(task.reference(gate, up), gate * up / (1 + torch.exp(-gate)))


@pytest.mark.parametrize(("task", "case"), checks("rotary"))
def test_rotary_turns_pairs_as_complex_numbers(task, case):
    q, k, cos, sin = drawn(task, case)
    turn = torch.complex(cos, sin)[:, None]
    for got, x in zip(task.reference(q, k, cos, sin), (q, k), strict=True):
        turned = torch.complex(*x.chunk(2, dim=-1)) * turn
        assert close(got, torch.cat([turned.real, turned.imag], dim=-1))
    assert torch.allclose(cos.square() + sin.square(), torch.ones_like(cos), atol=1e-6)


@pytest.mark.parametrize(("task", "case"), checks("add_rmsnorm"))
def test_the_sum_is_normalised(task, case):
    x, residual, weight = drawn(task, case)
    h = x + residual
    rms = (h.pow(2).sum(1, keepdim=True) / case["n"] + 1e-6).sqrt()
    assert agree(task.reference(x, residual, weight), (h / rms * weight, h))


@pytest.mark.parametrize(("task", "case"), checks("qk_norm"))
def test_every_head_is_normalised_by_its_own_weight(task, case):
    q, k, *weights = drawn(task, case)
    wanted = [x * weight / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() for x, weight in zip((q, k), weights)]
    assert agree(task.reference(q, k, *weights), wanted)


@pytest.mark.parametrize(("task", "case"), checks("router_softmax"))
def test_probabilities_of_experts_and_their_log_sum_exp(task, case):
    (logits,) = drawn(task, case)
    total = logits.exp().sum(1)
    assert agree(task.reference(logits), (logits.exp() / total[:, None], total.log()))


@pytest.mark.parametrize(("task", "case"), checks("rmsnorm_backward", "layernorm_backward"))
def test_gradients_of_norms_are_autograds(task, case):
    x, weight, dy, *_ = drawn(task, case)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    if task.name == "rmsnorm_backward":
        y = F.rms_norm(x, (case["n"],), weight, 1e-6)
        statistics = [torch.rsqrt(x.square().mean(1) + 1e-6)]
    else:
        leaves.append(torch.zeros_like(weight, requires_grad=True))
        y = F.layer_norm(x, (case["n"],), weight, leaves[2], 1e-5)
        statistics = [x.mean(1), torch.rsqrt(x.var(1, correction=0) + 1e-5)]
    wanted = torch.autograd.grad(y, leaves, dy)
    with torch.no_grad():
        assert agree(task.reference(x, weight, dy, *statistics), wanted)


@pytest.mark.parametrize("name", ["rmsnorm_backward", "layernorm_backward"])
def test_statistics_that_are_handed_over_are_those_of_x(name):
    task = load(name)
    x, _, _, *given = task.inputs(task.cases_of(CaseKind.CHECK)[1], torch.Generator().manual_seed(1), "cpu")
    wide = x.double()
    if name == "rmsnorm_backward":
        wanted = [torch.rsqrt(wide.square().mean(1) + 1e-6)]
    else:
        wanted = [wide.mean(1), torch.rsqrt(wide.var(1, correction=0) + 1e-5)]
    assert all(torch.allclose(one.double(), other, atol=1e-6) for one, other in zip(given, wanted, strict=True))


@pytest.mark.parametrize(("task", "case"), checks("cross_entropy_backward"))
def test_cross_entropy_and_its_gradient_are_autograds(task, case):
    logits, target, dloss = drawn(task, case)
    logits.requires_grad_()
    loss = F.cross_entropy(logits, target, reduction="none")
    wanted = (loss.detach(), torch.autograd.grad(loss, logits, dloss)[0])
    with torch.no_grad():
        assert agree(task.reference(logits, target, dloss), wanted)


@pytest.mark.parametrize(("task", "case"), checks("int4_matmul"))
def test_four_bits_at_a_time(task, case):
    x, packed, scales = drawn(task, case)
    weight = torch.empty(case["k"], case["n"], dtype=torch.float64)
    for row in range(case["k"]):
        for column in range(case["n"]):
            stored = int(packed[row // 2, column]) // (16 if row % 2 else 1) % 16
            weight[row, column] = (stored - 8) * scales[row // case["group"], column]
    assert close(task.reference(x, packed, scales), x @ weight)


@pytest.mark.parametrize(("task", "case"), checks("grouped_matmul"))
def test_every_row_meets_its_expert(task, case):
    x, weights, offsets = drawn(task, case)
    expert = torch.bucketize(torch.arange(case["tokens"]), offsets[1:].long(), right=True)
    assert close(task.reference(x, weights, offsets), torch.einsum("tk,tkn->tn", x, weights[expert]))
    assert offsets[0] == 0 and offsets[-1] == case["tokens"] and (offsets.diff() >= 0).all()


@pytest.mark.parametrize(("task", "case"), checks("fp8_matmul"))
def test_scales_are_by_row_and_by_column(task, case):
    a, b, scale_a, scale_b = drawn(task, case)
    assert close(task.reference(a, b, scale_a, scale_b), (a * scale_a) @ (b * scale_b.T).T)


@pytest.mark.parametrize(("task", "case"), checks("int4_matmul", "grouped_matmul", "fp8_matmul"))
def test_stated_flops_hold_those_of_the_product(task, case):
    scaling = {"int4_matmul": 2 * case["n"] * case["k"], "fp8_matmul": 2 * case.get("m", 0) * case["n"]}
    assert task.flops(case) == counted(task.reference, *drawn(task, case)) + scaling.get(task.name, 0)
