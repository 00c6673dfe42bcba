"""Exceptions of launching plans. Importable without CUDA."""

from __future__ import annotations


class PlanFault(Exception):
    """The plan cannot be launched: the candidate's fault; the message is a sentence."""


class CudaFault(Exception):
    """A CUDA call failed. After most errors the context is lost. `code`: the driver's number."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
