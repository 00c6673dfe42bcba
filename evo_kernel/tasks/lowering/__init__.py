"""Lowering: from a task's PyTorch reference to a first, naive but correct Triton module. No GPU, no model, no key.

trace.py            reference → aten graph with symbolic sizes     decompositions.py  what is broken into simpler aten
layout.py           values, strides, collapsing of dimensions      frames.py          loops that kernels share
module.py render.py the module being written, and its text         registry.py        which function lowers what
pointwise.py reduction.py contraction.py indexing.py views.py      one family each: a new lowering goes here
"""

from evo_kernel.tasks.lowering.lower import lower, lower_function, unsupported

__all__ = ["lower", "lower_function", "unsupported"]
