"""Attention and convolution tasks: references against independent oracles, flops and bytes against counted ones."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.check import compare
from evo_kernel.fitness.correctness.error_bounds import expect
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import as_float64
from evo_kernel.types import CaseKind


def drawn(task, case, seed=5):
    """The inputs in float64."""
    return [as_float64(value) for value in task.inputs(case, torch.Generator().manual_seed(seed), "cpu")]


def checks(*names):
    return [pytest.param(task, case, id=f"{task.name}-{case.name}")
            for task in map(load, names) for case in task.cases_of(CaseKind.CHECK)]  # fmt: skip


def close(got, wanted):
    return torch.allclose(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("task", "case"), checks("attention_full", "attention_causal", "gqa"))
def test_attention_is_the_scaled_dot_product(task, case):
    q, k, v, *flag = drawn(task, case)
    causal = bool(flag[0]) if flag else task.name == "attention_causal"
    assert close(task.reference(*drawn(task, case)), F.scaled_dot_product_attention(q, k, v, None, 0.0, causal, enable_gqa=True))  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), [("attention_full", "SCORES_AT_ONCE"), ("gqa", "SCORES_AT_ONCE")] + [
    (name, "SCORES_AT_ONCE") for name in ("attention_causal", "attention_backward", "shared_prompt", "shared_prompt_backward")
])  # fmt: skip
def test_a_reference_in_pieces_is_the_reference_at_once(name, limit):
    """Real sizes are computed some rows at a time; check cases fit in one piece, so pieces are made small here."""
    task = load(name)
    case = task.cases_of(CaseKind.CHECK)[0]
    inputs = drawn(task, case)
    whole = task.outputs(*inputs)
    scope = task.reference_function.__globals__
    before, scope[limit] = scope[limit], 7 * 4 * 100
    try:
        pieces = task.outputs(*inputs)
    finally:
        scope[limit] = before
    assert all(close(one, other) for one, other in zip(pieces, whole, strict=True))


@pytest.mark.parametrize(("task", "case"), checks("decode_attention"))
def test_pages_are_read_in_the_order_of_the_table(task, case):
    q, k_pages, v_pages, table, lengths = drawn(task, case)
    out = task.reference(q, k_pages, v_pages, table, lengths)
    for i, length in enumerate(lengths.tolist()):
        k, v = (torch.cat([pages[page] for page in table[i].tolist()])[:length] for pages in (k_pages, v_pages))
        k, v = (x.repeat_interleave(case["h"] // case["hk"], dim=1).transpose(0, 1) for x in (k, v))
        assert close(out[i], F.scaled_dot_product_attention(q[i, :, None], k, v)[:, 0])


def one_by_one(q, k_ctx, v_ctx, k_dec, v_dec, cu):
    """Each response by itself, as a sequence of the prompt and the response: outputs, and log-sum-exp of its rows."""
    p, group = len(k_ctx), q.shape[1] // k_ctx.shape[1]
    starts = cu.tolist()
    out, lse = [], []
    for number in range(len(starts)):
        rows = slice(0, p) if number == 0 else slice(p + starts[number - 1], p + starts[number])
        own = slice(0, 0) if number == 0 else slice(starts[number - 1], starts[number])
        k, v = (torch.cat([a, b[own]]).repeat_interleave(group, dim=1).transpose(0, 1)
                for a, b in ((k_ctx, k_dec), (v_ctx, v_dec)))  # fmt: skip
        mine = q[rows].transpose(0, 1)
        length = mine.shape[1]
        hidden = torch.ones(length, k.shape[1], dtype=torch.bool).triu(k.shape[1] - length + 1)
        scores = (mine @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
        out.append((scores.softmax(-1) @ v).transpose(0, 1))
        lse.append(scores.logsumexp(-1))
    return torch.cat(out), torch.cat(lse, dim=1)


@pytest.mark.parametrize(("task", "case"), checks("shared_prompt"))
def test_a_shared_prompt_is_as_many_sequences(task, case):
    inputs = drawn(task, case)
    for got, wanted in zip(task.reference(*inputs), one_by_one(*inputs), strict=True):
        assert close(got, wanted)


@pytest.mark.parametrize(("task", "case"), checks("shared_prompt_backward"))
def test_gradients_of_the_shared_prompt_are_autograds(task, case):
    *leaves, upstream, cu = drawn(task, case)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    wanted = torch.autograd.grad(one_by_one(*leaves, cu)[0], leaves, upstream)
    with torch.no_grad():
        got = task.reference(*leaves, upstream, cu)
    assert all(close(one, other) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("task", "case"), checks("attention_backward"))
def test_gradients_of_attention_are_autograds(task, case):
    *leaves, upstream = drawn(task, case)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True), leaves, upstream)
    with torch.no_grad():
        got = task.reference(*leaves, upstream)
    assert all(close(one, other) for one, other in zip(got, wanted, strict=True))


def by_flash_attention(task, inputs, corrected=True):
    """Gradients as that kernel family makes them: weights from the log-sum-exp, the correction from the rounded output,
    operands of products rounded to the task's dtype."""
    q, k, v, do = inputs if task.name == "attention_backward" else flattened(*inputs)
    wide, kind = torch.float32, q.dtype
    q, k, v, do = (x.to(wide) for x in (q, k, v, do))
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen(task, inputs), float("-inf"))
    p = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    o = (p.to(kind).to(wide) @ v).to(kind).to(wide)
    correction = (do * o).sum(-1, keepdim=True) if corrected else 0.0
    ds = (p * (do @ v.mT - correction) * q.shape[-1] ** -0.5).to(kind).to(wide)
    made = ds @ k, ds.mT @ q, p.to(kind).to(wide).mT @ do
    if task.name == "attention_backward":
        return tuple(x.to(kind) for x in made)
    heads, prompt = inputs[1].shape[1], len(inputs[1])
    dq = made[0].transpose(0, 1).to(kind).contiguous()
    dk, dv = (x.unflatten(0, (heads, -1)).sum(1).transpose(0, 1).to(kind) for x in made[1:])
    return dq, *(x.contiguous() for x in (dk[:prompt], dv[:prompt], dk[prompt:], dv[prompt:]))


def flattened(q, k_ctx, v_ctx, k_dec, v_dec, do, cu):
    """Heads first; keys and values of prompt and responses in one, repeated for every query head."""
    group = q.shape[1] // k_ctx.shape[1]
    k, v = (
        torch.cat(pair).repeat_interleave(group, dim=1).transpose(0, 1) for pair in ((k_ctx, k_dec), (v_ctx, v_dec))
    )
    return q.transpose(0, 1), k, v, do.transpose(0, 1)


def seen(task, inputs):
    """[query, key]: whether the query attends to the key."""
    length = len(inputs[0]) if task.name != "attention_backward" else inputs[0].shape[-2]
    place = torch.arange(length)
    causal = place <= place[:, None]
    if task.name == "attention_backward":
        return causal
    owner = torch.bucketize(place - len(inputs[1]), inputs[-1].long(), right=True)
    return causal & ((owner == owner[:, None]) | (owner == 0))


@pytest.mark.parametrize("regime", regimes.REGIMES)
@pytest.mark.parametrize(("task", "case"), checks("attention_backward", "shared_prompt_backward"))
def test_gradients_in_the_usual_way_are_honest_in_every_regime(task, case, regime):
    """Where a row's weight is nearly all on one key, digits cancel; the vendors' kernels lose them too."""
    inputs = regimes.apply(regime, task.inputs(case, torch.Generator().manual_seed(5), "cpu"))
    expected = expect(task, inputs)
    verdict = compare(case.name, by_flash_attention(task, inputs), expected, task.tolerance)
    assert verdict.passed, verdict.reason
    if regime == "nominal":
        careless = by_flash_attention(task, inputs, corrected=False)
        assert not compare(case.name, careless, expected, task.tolerance).passed


@pytest.mark.parametrize(("task", "case"), checks("conv2d", "conv2d_tf32", "conv2d_channels_last", "conv2d_bf16"))
def test_a_convolution_is_its_definition(task, case):
    x, weight, stride = drawn(task, case)
    got = task.reference(x, weight, stride)
    if task.name in ("conv2d_channels_last", "conv2d_bf16"):
        x, weight, got = (tensor.permute(0, 3, 1, 2) for tensor in (x, weight, got))
    f = case["f"]
    for i in range(got.shape[2]):
        for j in range(got.shape[3]):
            window = x[:, :, i * stride : i * stride + f, j * stride : j * stride + f]
            assert close(got[:, :, i, j], torch.einsum("ncuv,kcuv->nk", window, weight))


def counted(function, *inputs):
    """Flops of the products and convolutions that PyTorch runs, by its own counter."""
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize(("task", "case"), checks("attention_full", "conv2d", "conv2d_bf16"))
def test_stated_flops_are_those_that_the_reference_runs(task, case):
    assert task.flops(case) == counted(task.reference, *drawn(task, case))


def causal_pairs(s):
    return sum(1 for query in range(s) for key in range(s) if key <= query)


def shared_pairs(case, cu):
    owner = [0] * case["p"]
    for number, (start, end) in enumerate(pairwise(cu)):
        owner += [number + 1] * (end - start)
    return sum(
        (owner[key] == owner[query] and key <= query) or (owner[key] == 0 < owner[query])
        for query in range(len(owner)) for key in range(len(owner))
    )  # fmt: skip


PAIRS = {  # (query, key) pairs of one head that the mask lets through, counted one by one
    "attention_causal": lambda case, inputs: case["b"] * causal_pairs(case["s"]),
    "attention_backward": lambda case, inputs: case["b"] * causal_pairs(case["s"]),
    "gqa": lambda case, inputs: case["b"] * (causal_pairs(case["s"]) if case["causal"] else case["s"] ** 2),
    "decode_attention": lambda case, inputs: sum(inputs[-1].tolist()),
    "shared_prompt": lambda case, inputs: shared_pairs(case, inputs[-1].tolist()),
    "shared_prompt_backward": lambda case, inputs: shared_pairs(case, inputs[-1].tolist()),
}


@pytest.mark.parametrize(("task", "case"), checks(*PAIRS))
def test_stated_flops_are_those_of_the_pairs_that_are_seen(task, case):
    products = 5 if task.name.endswith("backward") else 2
    pairs = PAIRS[task.name](case, drawn(task, case))
    assert task.flops(case) == 2 * products * case["h"] * case["d"] * pairs


@pytest.mark.parametrize(("task", "case"), checks("decode_attention"))
def test_stated_bytes_are_what_the_output_depends_on(task, case):
    """Elements of the cache whose gradient is not zero, and entries of the table that lead to them."""
    q, k_pages, v_pages, table, lengths = drawn(task, case)
    pages = [k_pages.requires_grad_(), v_pages.requires_grad_()]
    out = task.reference(q, *pages, table, lengths)
    moved = torch.autograd.grad(out.square().sum(), pages)
    cache = sum(int((part != 0).sum()) for part in moved)
    entries = sum(-(-length // case["page"]) for length in lengths.tolist())
    assert task.bytes(case) == 2 * (cache + q.numel() + out.numel()) + 4 * (entries + lengths.numel())


def test_twelve_layers_are_there_once_each():
    for name in ("conv2d", "conv2d_tf32", "conv2d_channels_last", "conv2d_bf16"):
        layers = [case for case in load(name).cases if case.kind is not CaseKind.CHECK]
        assert sorted(case.name for case in layers) == sorted(f"conv{i}" for i in range(1, 13))
        sizes = [(case["c"], case["h"], case["k"], case["f"], case["stride"]) for case in layers]
        assert len(set(sizes)) == 12 and all(case["n"] == 128 for case in layers)
