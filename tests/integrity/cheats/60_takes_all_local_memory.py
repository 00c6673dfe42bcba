"""Right, with a frame of 400 KB a thread: the driver would keep 108 GB for all threads that fit on the GPU.

row: 60
task: row_sums_large
ends: rejected
says: local memory a thread
"""

import torch

from evo_kernel.cuda import kernel

sums = kernel(
    r"""
extern "C" __global__ void sums(const float* x, float* y, int m, int n) {
    __shared__ float warps[32];
    volatile float big[100000];
    for (int row = blockIdx.x; row < m; row += gridDim.x) {
        const float* mine = x + (long long)row * n;
        float total;

            total = 0.0f;
            for (int i = threadIdx.x; i < n; i += blockDim.x) total += mine[i];
            for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
            if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = total;
            __syncthreads();
            total = warps[threadIdx.x % 32];
            for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);

        big[(row * 7919) % 100000] = total;
        if (threadIdx.x == 0) y[row] = big[(row * 7919) % 100000];
        __syncthreads();
    }
}
""",
    "sums",
)


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    sums[m, 1024](x, y, m, n)
    return y
