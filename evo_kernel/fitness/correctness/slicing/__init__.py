"""Chosen elements of a reference's outputs at real size, without computing the others.

A reference is run once on tensors without data (tracing.py): what it does becomes a graph of operations. What is asked
of its outputs is carried backwards through that graph (rules.py, views.py) and becomes a straight program over slices
of the inputs (program.py), which gives the elements that were asked for, in float64 or in the task's own dtypes.
`SlicedReference` (reference.py) makes of it what `expect` makes of the whole reference.
"""
