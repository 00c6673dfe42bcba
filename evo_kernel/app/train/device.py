"""Where a network is trained."""

from __future__ import annotations

from evo_kernel.errors import UserError


def chosen_device(wanted: str) -> str:
    """`cuda` or `cpu`; auto: a GPU if there is one. Raises UserError."""
    import torch

    present = torch.version.cuda is not None and torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise UserError("--device cuda: torch sees no CUDA GPU here; train with --device cpu, or say `auto`")
    return "cuda" if present and wanted != "cpu" else "cpu"
