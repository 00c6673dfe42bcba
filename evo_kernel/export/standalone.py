"""A kernel's text as whoever launches it without a plan needs it.

Tensor descriptors that a kernel makes on the GPU lie in memory that Triton asks the program for. A plan lists that
memory; a program has to set an allocator, in the context that launches, or every launch fails.
"""

from __future__ import annotations

_ALLOCATING = """

# ---- tensor descriptors that a kernel makes lie in memory that Triton asks for, in every thread anew ---

import torch
import triton


def _memory_of_descriptors(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


_run_with_memory = run


def run(*inputs):
    triton.set_allocator(_memory_of_descriptors)
    return _run_with_memory(*inputs)
"""


def standalone(text: str) -> str:
    """The text of a module with `run`, with an allocator where its kernels need one and it sets none itself."""
    if "make_tensor_descriptor" not in text or "set_allocator" in text:
        return text
    return text.rstrip() + "\n" + _ALLOCATING
