"""Called functions whose reference is made of Triton kernels (TritonBench G): on a CPU their IR is executed.

A child process does it, one for all problems, started when it is first needed: it may crash or hang, and in it every
launch of Triton goes to the judge's executor. On a GPU the reference runs in this process, as its harness runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.errors import TaskError
from evo_kernel.tasks.call_template import Returned
from evo_kernel.tasks.calls import Called
from evo_kernel.tasks.helper_process import HelperLost, HelperProcess
from evo_kernel.tasks.task import describe

DEADLINE_S = 60.0
"""Of processor time for one request: a program takes milliseconds, and some tests launch a hundred thousand."""
CHILD = "evo_kernel.fitness.ir.jit"
"""The module of the child, which answers by `answer_of`: by name, for the executor is the judge's."""


class Interpreted(Called):
    """A problem whose functions launch Triton kernels."""

    skipped_on = "cpu"

    def effects(self, values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        return self._ask("effects", values) if values[0].device.type == "cpu" else super().effects(values)

    def returned(self, values: Sequence[torch.Tensor]) -> Returned:
        return self._ask("returned", values) if values[0].device.type == "cpu" else super().returned(values)

    def reference(self) -> Callable[..., Any]:
        plain = super().reference()

        def reference(*values: Any) -> Any:
            if any(isinstance(value, FakeTensor) or value.device.type == "meta" for value in values):
                raise TaskError(f"{self.path}: its Triton kernels cannot be traced; the task's SEED is where to start.")
            if values[0].device.type != "cpu":
                return plain(*values)
            return self._ask("reference", [value.detach() for value in values])

        reference.__signature__ = plain.__signature__  # pyright: ignore[reportFunctionMemberAccess]
        reference.compiled_baseline = False  # pyright: ignore[reportFunctionMemberAccess]
        return reference

    def _ask(self, what: str, values: Sequence[torch.Tensor]) -> Any:
        """What the child answers for `effects`, `returned` or `reference`. Raises TaskError."""
        with _disable_current_modes():
            try:
                fine, value = _CHILD.ask((self.made_by, what, list(values)), DEADLINE_S)
            except HelperLost as lost:
                late = f"its kernels took more than {DEADLINE_S:g} s of a processor"
                told = late if lost.code is None else "the process that executes its kernels ended"
                raise TaskError(f"{self.path}: {told}. Check it on a GPU.") from lost
        if not fine:
            raise TaskError(value)
        return value


_CHILD = HelperProcess(f"from {CHILD} import serve; serve()")


def answer_of() -> Callable[[Any], tuple[bool, Any]]:
    """The child's side: what answers a request, and keeps the problems that it was asked about."""
    problems: dict[str, Interpreted] = {}

    def answer(request: Any) -> tuple[bool, Any]:
        made_by, what, values = request
        key = repr(made_by)
        try:
            problem = problems[key] = problems.get(key) or Interpreted(**made_by)
            if what == "reference":
                made = Called.reference(problem)(*map(torch.clone, values))
            else:
                made = getattr(Called, what)(problem, values)
            return True, pytree.tree_map_only(torch.Tensor, torch.clone, made)  # views would carry their storage
        except (Exception, SystemExit) as error:  # noqa: BLE001  the benchmark's own code may raise anything
            return False, str(error) if isinstance(error, TaskError) else f"{made_by['path']}: {describe(error)}."

    return answer
