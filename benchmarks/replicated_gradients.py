"""Are the gradients of attention on replicated prompts right where the copies have more than 2^31 elements?

    python -m benchmarks.replicated_gradients

On a GPU with 100 GB: the gradients that PyTorch gives for N copies of a prompt with their responses, held against
FlexAttention on the prompt once, and against single responses computed alone. Sizes just below and just above.
"""

from __future__ import annotations

import torch

from evo_kernel.tasks import shared_prompts
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case
from evo_kernel.types import CaseKind

SIZES = ((28, 16384, 2048), (16, 32768, 2048))  # responses, rows of the prompt, rows of each response
HEADS = {"h": 32, "hk": 8, "d": 128, "ragged": 0}
OUTPUTS = ("dq", "dk_ctx", "dv_ctx", "dk_dec", "dv_dec")


def apart(one: torch.Tensor, other: torch.Tensor) -> str:
    """The relative Frobenius distance."""
    return f"{float((one.float() - other.float()).norm() / other.float().norm()):.5f}"


def held(n: int, p: int, r: int) -> None:
    case = Case(f"N{n} P{p} R{r}", CaseKind.SEARCH, {"n": n, "p": p, "r": r, **HEADS})
    generator = torch.Generator("cuda").manual_seed(1)
    inputs = load("shared_prompt_backward").inputs_function(case, generator, torch.device("cuda"))
    q, k_ctx, v_ctx, k_dec, v_dec, do, _ = inputs
    print(f"{case.name}: {n * (p + r) * HEADS['h'] * HEADS['d'] / 2**31:.3f} x 2^31 elements of replicated queries")
    copies = shared_prompts.replicated_gradients(*inputs)
    for name, method in (
        ("flex", shared_prompts.flex_gradients), ("three parts", shared_prompts.three_parts_gradients)
    ):  # fmt: skip
        other = method(*inputs)
        told = ", ".join(f"{o} {apart(a, b)}" for o, a, b in zip(OUTPUTS, copies, other, strict=True))
        print(f"    replicated against {name}: {told}")
    for i in (0, n // 2, n - 1):
        rows, own = slice(p + i * r, p + (i + 1) * r), slice(i * r, (i + 1) * r)
        starts = torch.tensor([0, r], dtype=torch.int32, device="cuda")
        alone = shared_prompts.replicated_gradients(
            torch.cat([q[:p], q[rows]]), k_ctx, v_ctx, k_dec[own], v_dec[own], torch.cat([do[:p], do[rows]]), starts
        )
        dq, dk = apart(copies[0][rows], alone[0][p:]), apart(copies[3][own], alone[3])
        print(f"    response {i}, replicated against alone: dq {dq}, dk_dec {dk}", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        for size in SIZES:
            held(*size)
            torch.cuda.empty_cache()
