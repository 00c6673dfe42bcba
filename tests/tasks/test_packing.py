"""Packing sequences that share a prompt, and a training step over them."""

import pytest
import torch

from benchmarks import shared_prompt_training as training
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.packing import pack

SEQUENCES = [torch.tensor(tokens) for tokens in ([5, 6, 7, 1], [5, 6, 7, 2, 3, 4], [5, 6, 7, 8, 9])]


def test_rows_positions_and_what_predicts_what():
    packed = pack(SEQUENCES, 3)
    assert packed.tokens.tolist() == [5, 6, 7, 1, 2, 3, 4, 8, 9]
    assert packed.cu.tolist() == [0, 1, 4, 6] and packed.cu.dtype == torch.int32
    assert packed.positions.tolist() == [0, 1, 2, 3, 3, 4, 5, 3, 4]
    assert packed.predictors.tolist() == [2, 2, 4, 5, 2, 7]
    assert packed.responses.tolist() == [1, 2, 3, 4, 8, 9] and packed.numbers.tolist() == [0, 1, 1, 1, 2, 2]
    assert packed.saving == (4 + 6 + 5) / 9
    for back, sequence in zip(packed.sequences(), SEQUENCES, strict=True):
        assert torch.equal(back, sequence)


@pytest.mark.parametrize(
    ("sequences", "prompt", "words"),
    [
        (SEQUENCES, 4, "Sequence 0 has 4 tokens, no more than the prompt's 4"),
        ([SEQUENCES[1], torch.tensor([5, 0, 7, 1])], 3, "Sequence 1 differs from sequence 0 at token 1"),
        ([], 3, "one sequence at least"),
    ],
)
def test_what_cannot_be_packed_is_said(sequences, prompt, words):
    with pytest.raises(ValueError, match=words):
        pack(sequences, prompt)


def step_and_model():
    torch.manual_seed(0)
    return training.Decoder(training.TINY).double(), training.drawn(training.TINY, "cpu")


def test_a_step_has_the_same_loss_and_gradients_with_the_prompt_once():
    model, step = step_and_model()
    assert len(set(step.rows.lengths)) > 1
    loss, wanted = training.gradients(model, lambda: training.replicated_loss(model, step))
    packed, made = training.gradients(model, lambda: training.packed_loss(model, step, training.by_reference))
    assert packed == pytest.approx(loss, rel=1e-12)
    assert training.apart(made, wanted) < 1e-9
    assert all(gradient.norm() > 0 for gradient in wanted)


def test_a_step_whose_attention_forgets_the_prompt_would_be_seen():
    model, step = step_and_model()
    _, wanted = training.gradients(model, lambda: training.replicated_loss(model, step))

    def forgetful(q, k_ctx, v_ctx, k_dec, v_dec, cu):
        return training.by_reference(q, k_ctx.detach(), v_ctx.detach(), k_dec, v_dec, cu)

    _, made = training.gradients(model, lambda: training.packed_loss(model, step, forgetful))
    assert training.apart(made, wanted) > 1e-3


def test_first_kernels_are_joined_to_autograd_as_the_task_is_stated(monkeypatch):
    """The glue by itself: the kernels' place is taken by the references of the two tasks."""
    runs = {name: load(name).reference_function for name in ("shared_prompt", "shared_prompt_backward")}
    monkeypatch.setattr(training, "_RUNS", runs)
    model, step = step_and_model()
    _, wanted = training.gradients(model, lambda: training.replicated_loss(model, step))
    _, made = training.gradients(model, lambda: training.packed_loss(model, step, training.FirstKernels.apply))
    assert training.apart(made, wanted) < 1e-9


def test_the_loss_clips_what_leaves_the_older_policy():
    _, step = step_and_model()
    chosen = (step.older + 1).requires_grad_()  # e times as likely: beyond the clip
    (slope,) = torch.autograd.grad(step.loss(chosen), chosen)
    (penalty,) = torch.autograd.grad(
        (training.PENALTY * (((step.reference - chosen).exp() + chosen) / torch.tensor(step.rows.lengths)[step.rows.numbers])).sum() / 3,
        chosen,
    )  # fmt: skip
    gained = step.advantages[step.rows.numbers] > 0
    assert torch.allclose(slope[gained], penalty[gained]) and (slope[~gained] > penalty[~gained]).all()
