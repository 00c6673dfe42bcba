"""One script a published figure; each prints its table."""

FIGURES_OF = ("attention", "cross_entropy", "layernorm", "linear_gelu", "matmul", "rmsnorm", "softmax")
"""The built-in tasks that figures in docs/ are of, where `--tasks` names no others: so that they can be repeated."""
