"""Process that runs references which are Triton kernels on a CPU, with the executor of Triton IR. Not confined.

evo_kernel/tasks/interpreted.py starts it. It runs the user's own checkout, which is trusted, so accesses are not
checked: kernels that read past an end, as many published ones do, read zeros.
"""

from __future__ import annotations

import torch

from evo_kernel.fitness.ir.jit import install
from evo_kernel.tasks.helper_process import answer_requests
from evo_kernel.tasks.interpreted import answer_of


def serve() -> None:
    """Answer `Interpreted`'s requests until the input ends."""
    install()
    torch.set_num_threads(1)
    answer_requests(answer_of())
