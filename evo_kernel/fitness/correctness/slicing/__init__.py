"""Computes chosen elements of a reference's outputs at real size without computing the others.

The reference runs once on tensors without data (tracing.py), which gives a graph of operations. The requested elements
are propagated backwards through this graph (rules.py, views.py), which gives a straight-line program over slices of the
inputs (program.py). It computes the elements in float64 or in the task's own dtypes. `SlicedReference` (reference.py)
computes error bounds from them, as `expect` does for whole outputs.
"""
