"""Softmax over rows in CUDA C++, naively: one block a row, three passes over it, sums by warp shuffles."""

import torch

from evo_kernel.cuda import kernel

THREADS = 256

softmax_kernel = kernel(
    r"""
#include <math_constants.h>

__device__ float largest(float a, float b) { return a > b ? a : b; }
__device__ float sum(float a, float b) { return a + b; }

// The combination of every thread's value, for every thread of the block.
template <typename Combine>
__device__ float over_block(float value, float start, Combine combine) {
    __shared__ float warps[32];
    for (int step = 16; step > 0; step /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffff, value, step));
    __syncthreads();  // the values of the last call have been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : start;
    for (int step = 16; step > 0; step /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffff, value, step));
    return value;
}

extern "C" __global__ void softmax_kernel(const float* x, float* y, int columns, long long x_stride, long long y_stride)
{
    x += blockIdx.x * x_stride;
    y += blockIdx.x * y_stride;
    float peak = -CUDART_INF_F;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) peak = largest(peak, x[i]);
    peak = over_block(peak, -CUDART_INF_F, largest);
    float total = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) total += expf(x[i] - peak);
    total = over_block(total, 0.0f, sum);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[i] = expf(x[i] - peak) / total;
}
""",
    "softmax_kernel",
)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    softmax_kernel[m, THREADS](x, y, n, x.stride(0), y.stride(0))
    return y
