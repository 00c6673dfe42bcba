"""Lowering: from a task's PyTorch reference to a first, naive but correct Triton module. No GPU, no model, no key.

trace.py             reference → aten graph of symbolic sizes (decompositions.py: what is broken up, or respelled)
layout.py            values, strides, collapsing of dimensions
frames.py            the loops and addresses that kernels share
module.py            the module being written, and its text
registry.py          which function lowers which operation; a new lowering is one decorated function in a family:
                     pointwise activations reduction contraction convolution indexing recurrent views
"""
