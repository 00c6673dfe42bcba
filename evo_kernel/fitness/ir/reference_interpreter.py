"""The process in which references that are Triton kernels run on a CPU: the executor of Triton IR, unconfined.

Started by evo_kernel/tasks/interpreted.py. What is trusted here is the user's checkout, so accesses are not checked:
kernels that read past an end, as many published ones do, find the zeros around each tensor.
"""

from __future__ import annotations

import torch

from evo_kernel.fitness.ir.jit import install
from evo_kernel.tasks.helper_process import answer_requests
from evo_kernel.tasks.interpreted import answer_of


def serve() -> None:
    """Answer `Interpreted`'s requests until nobody asks any more."""
    install()
    torch.set_num_threads(1)
    answer_requests(answer_of())
