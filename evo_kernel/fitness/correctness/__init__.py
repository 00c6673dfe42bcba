"""Is an output right: float64 references, bounds by honest errors, value regimes."""
