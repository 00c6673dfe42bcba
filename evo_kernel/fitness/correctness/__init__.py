"""Correctness of outputs: float64 references, error bounds, value regimes."""
