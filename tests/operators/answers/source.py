"""The source that the corpus edits: small, and with two places that look alike."""

SOURCE = '''"""Scale and shift."""

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + cols, mask=mask)
    tl.store(y_ptr + cols, x * 2.0, mask=mask)


@triton.jit
def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + cols, mask=mask)
    tl.store(y_ptr + cols, x + 1.0, mask=mask)


def run(x):
    n = x.numel()
    y = torch.empty_like(x)
    grid = (triton.cdiv(n, BLOCK),)
    scale_kernel[grid](x, y, n, BLOCK=BLOCK)
    shift_kernel[grid](y, y, n, BLOCK=BLOCK)
    return y
'''

SCALE = "    tl.store(y_ptr + cols, x * 2.0, mask=mask)"
SHIFT = "    tl.store(y_ptr + cols, x + 1.0, mask=mask)"
BOTH = "    tl.store(y_ptr + cols, x * 2.0 + 1.0, mask=mask)"
CALL = "    shift_kernel[grid](y, y, n, BLOCK=BLOCK)"
FUSED = SOURCE.replace(SCALE, BOTH).replace(CALL + "\n", "")
