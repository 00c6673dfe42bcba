"""Functions that cleaned kernels may call, in our own words. Each is written into a module only where it is used."""

from __future__ import annotations

_FUNCTIONS = '''@triton.jit
def product(a, b):
    return a * b

@triton.jit
def larger(a, a_index, b, b_index):
    """The larger value with its index: NaN before everything, the first among equals."""
    equal = (a == b) | ((a != a) & (b != b))
    wins = (a > b) | ((a != a) & (b == b)) | (equal & (a_index < b_index))
    return tl.where(wins, a, b), tl.where(wins, a_index, b_index)

@triton.jit
def smaller(a, a_index, b, b_index):
    """The smaller value with its index: NaN before everything, the first among equals."""
    equal = (a == b) | ((a != a) & (b != b))
    wins = (a < b) | ((a != a) & (b == b)) | (equal & (a_index < b_index))
    return tl.where(wins, a, b), tl.where(wins, a_index, b_index)

@triton.jit
def joined_moments(mean, squares, count, other_mean, other_squares, other_count):
    """Mean, sum of squared differences from it, and count of two sets together (Chan, Golub, LeVeque 1979)."""
    total = count + other_count
    share = tl.where(total == 0.0, 0.0, other_count / total)
    difference = other_mean - mean
    squares = squares + other_squares + difference * difference * count * share
    return mean + difference * share, squares, total

@triton.jit
def added_moments(value, mean, squares, count):
    """The same after one more value (Welford 1962)."""
    total = count + 1
    moved = mean + (value - mean) / total
    return moved, squares + (value - mean) * (value - moved), total

@triton.jit
def floor_division(a, b):
    """Division of integers towards minus infinity; `//` goes towards zero."""
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)

@triton.jit
def modulo(a, b):
    """The remainder with the sign of b; `%` has that of a."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
'''
HELPERS = {text.split("def ")[1].split("(")[0]: text.rstrip() + "\n" for text in _FUNCTIONS.split("\n\n")}
"""Name of a function → its text."""

CALLS = {
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "max2": "tl.max({0}, {1})",
    "min2": "tl.min({0}, {1})",
    "any": "(tl.max(({0}).to(tl.int32), {1}) != 0)",
    "prod": "tl.reduce({0}, {1}, product)",
    "max_with_index": "tl.reduce(({0}, {1}), {2}, larger)",
    "min_with_index": "tl.reduce(({0}, {1}), {2}, smaller)",
    "maximum_with_index": "larger({0}, {1}, {2}, {3})",
    "minimum_with_index": "smaller({0}, {1}, {2}, {3})",
    "welford_reduce": "added_moments({0}, {1}, {2}, {3})",
    "welford": "tl.reduce(({0}, {1}, {2}), {3}, joined_moments)",
    "welford_combine": "joined_moments({0}, {1}, {2}, {3}, {4}, {5})",
    "div_floor_integer": "floor_division({0}, {1})",
    "remainder_integer": "modulo({0}, {1})",
    "select_one": "tl.sum(tl.where({1}, {0}, 0), {dim}, keep_dims={keep_dims})",
    "promote_to_tensor": "{0}",
}
"""Inductor's helper → the same in Triton's words or ours. Its maxima keep NaN where Triton's leave that open."""

LANGUAGE = ("abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt")
"""Functions of CUDA's math library that the language has itself."""
