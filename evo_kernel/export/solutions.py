"""A kernel as what KernelBench's harness accepts: a file that defines `ModelNew`.

It is built by the problem's own constructor (same arguments, same seed: same weights) and computes by the kernel's
`run`, which gets forward's arguments and then the module's tensors in the order of the task's inputs.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

FORBIDDEN = {"try:": r"\btry\s*:", "except": r"\bexcept\b", "pass": r"\bpass\b"}
"""What its static checker refuses anywhere outside comments (src/kernelbench/kernel_static_checker.py)."""


@dataclass(frozen=True)
class KernelBenchSolution:
    """What one file is made of."""

    level: int
    problem: int
    kernel: str  # the text of a module with run(*inputs), see standalone.py
    skeleton: str  # the problem's constructors, without what computes
    places: Sequence[str]  # of the module's tensors, dotted, in the order of run's last arguments

    def file_name(self, sample: int) -> str:
        return f"level_{self.level}_problem_{self.problem}_sample_{sample}_kernel.py"

    def text(self) -> str:
        """The module: the kernel, and `ModelNew` around it. The problem's names live in a function of their own."""
        return (
            f"{self.kernel.rstrip()}\n\n\n"
            "def _problem():\n"
            f"{textwrap.indent(self.skeleton, '    ')}\n"
            "    return Model\n\n\n"
            f"_PLACES = {list(self.places)!r}\n\n\n"
            "def _at(module, place):\n"
            '    for name in place.split("."):\n'
            "        module = getattr(module, name)\n"
            "    return module\n\n\n"
            "class ModelNew(_problem()):\n"
            "    def forward(self, *inputs):\n"
            "        return run(*inputs, *(_at(self, place).detach() for place in _PLACES))\n"
        )


def refused_by_kernelbench(text: str) -> list[str]:
    """What the harness's static checker would refuse the file for."""
    code = re.sub(r"#.*", "", text)
    return [name for name, pattern in FORBIDDEN.items() if re.search(pattern, code)]
