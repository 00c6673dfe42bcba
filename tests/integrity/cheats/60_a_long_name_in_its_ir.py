"""Forges IR with a resource whose long name makes a rule of the judge take quadratic time, in the judge's own process.

row: 60
task: softmax
ends: rejected, build_error
says: resources
"""

import torch
import triton
import triton.language as tl

from evo_kernel.fitness.record import launches

honest = launches.lower
KEY = "tt." + "b.c" * 100_000


def changed(text):
    """The text with an attribute of its last operation that names a resource."""
    if "dialect_resources" in text:  # this module is executed once a case
        return text
    before, found, after = text.rpartition("tt.return")
    named = f"{before}{found} {{tt.x = dense_resource<{KEY}> : tensor<4xi32>}}{after}"
    return named + (
        f'\n{{-#\n  dialect_resources: {{\n    builtin: {{\n      {KEY}: "0x0400000001000000020000000300000004000000"\n'
        "    }\n  }\n#-}\n"
    )


def lower(*args):
    out = honest(*args)
    if isinstance(out, str):
        return changed(out)
    return type(out)(changed(part) if isinstance(part, str) and "tt.return" in part else part for part in out)


launches.lower = lower


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
