"""bfloat16 and float8 as the interpreter keeps them, bits in integers, and as the numbers that they stand for."""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

FLOAT8 = {tl.float8e5: torch.float8_e5m2, tl.float8e4nv: torch.float8_e4m3fn}
NARROW = {tl.bfloat16, *FLOAT8}


def decode(data: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """bfloat16 or float8 bits as float32; anything else as it is."""
    if dtype == tl.bfloat16:
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FLOAT8:
        raw = torch.from_numpy(np.ascontiguousarray(data, dtype=np.uint8))
        return raw.view(FLOAT8[dtype]).float().numpy().reshape(data.shape)
    return data


def encode(values: np.ndarray, dtype: tl.dtype, toward_zero: bool = False) -> np.ndarray:
    """Numbers as bits of bfloat16 (nearest even unless `toward_zero`) or float8 (saturating, as sm_90 converts)."""
    wide = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
    if dtype == tl.bfloat16:
        bits = wide.view(np.uint32)
        bias = np.uint32(0) if toward_zero else ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
        rounded = ((bits + bias) >> np.uint32(16)).astype(np.uint16)
        return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)
    kind = FLOAT8[dtype]
    largest = torch.finfo(kind).max
    clamped = torch.from_numpy(wide).clamp(-largest, largest)
    return clamped.to(kind).view(torch.uint8).numpy().reshape(np.shape(values))
