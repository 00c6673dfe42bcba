"""Variation operators: what makes a new kernel from a brief (evo_kernel/app/operator_factory.py joins them)."""
