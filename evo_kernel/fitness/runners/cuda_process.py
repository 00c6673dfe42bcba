"""Entry point of the GPU process: `python -P -m evo_kernel.fitness.runners.cuda_process TASK [now]`.

With `now`, it creates its CUDA context while it imports torch; each takes seconds. Otherwise see cuda_worker.py.
"""

from __future__ import annotations

import ctypes
import sys
import threading

from evo_kernel.processes import end_with_owner


def main() -> None:
    end_with_owner()
    at_once = sys.argv[2:] == ["now"]
    if at_once:
        threading.Thread(target=_create_context, daemon=True).start()
    from evo_kernel.fitness.runners.cuda_worker import serve  # imports torch

    serve(sys.argv[1], at_once)


def _create_context() -> None:
    """Create the primary context of the first visible GPU. torch uses it, or meets the same error."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0):
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


if __name__ == "__main__":
    main()
