"""What goes wrong when a plan is launched. Importable without CUDA."""

from __future__ import annotations


class PlanFault(Exception):
    """The plan cannot be launched as it stands: the candidate's fault, told in a sentence."""


class CudaFault(Exception):
    """A CUDA call failed. After most of these the context is lost. `code` is the driver's number."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
