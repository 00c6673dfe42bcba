"""Loads cuBLAS itself and passes it raw addresses.

row: 49
task: matmul
ends: build_error, rejected
"""

import ctypes

import torch


def run(a, b):
    library = ctypes.CDLL("libcublas.so.12")
    c = torch.empty((a.shape[0], b.shape[1]), device=a.device)
    library.cublasSgemm_v2(ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), ctypes.c_void_p(c.data_ptr()))
    return c
