"""CUDA C++ that reads by inline assembly (a streaming load) and calls sincos in double.

task: rotary
where: gpu
"""

import torch

from evo_kernel.cuda import kernel

rotate = kernel(
    r"""
extern "C" __global__ void rotate(const float* x, const float* t, float* y, int n) {
    const int half = n / 2;
    const long long row = blockIdx.x;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float a, b; double s, c;
        asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(a) : "l"(x + row * n + i));
        asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(b) : "l"(x + row * n + half + i));
        sincos((double)t[row * half + i], &s, &c);
        y[row * n + i] = a * c - b * s;
        y[row * n + half + i] = a * s + b * c;
    }
}
""",
    "rotate",
)


def run(x, t):
    y = torch.empty_like(x)
    m, n = x.shape
    rotate[m, 256](x, t, y, n)
    return y
