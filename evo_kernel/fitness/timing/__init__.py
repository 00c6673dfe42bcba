"""Times and what they are held against: estimates, pairs, baselines, ceilings, confirmation."""
