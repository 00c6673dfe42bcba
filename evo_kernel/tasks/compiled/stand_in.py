"""What Inductor asks of the GPU while it writes kernels, answered for one H200 though there may be none.

The answers shape the text (how many blocks fill the device, which tiles fit), so that it is the same on every machine.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200",
    gcnArchName="",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=141 << 30,
    L2_cache_size=60 << 20,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
)
"""From NVIDIA's H100/H200 data sheet and CUDA's table of compute capability 9.0."""

_ANSWERS: dict[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "get_device_name": lambda device=None: PROPERTIES.name,
    "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
    "get_device_properties": lambda device=None: PROPERTIES,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
}


def _interface() -> Any:
    """The class through which Dynamo and Inductor speak to CUDA, with our answers."""
    from torch._dynamo.device_interface import CudaInterface

    class Worker:
        set_device = staticmethod(lambda device: None)
        current_device = staticmethod(lambda: 0)
        get_device_properties = staticmethod(lambda device=None: PROPERTIES)

    own = {name: staticmethod(answer) for name, answer in _ANSWERS.items() if name in dir(CudaInterface)}
    own |= {
        "get_raw_stream": staticmethod(lambda device: 0),
        "exchange_device": staticmethod(lambda device: 0),
        "maybe_exchange_device": staticmethod(lambda device: 0),
        "get_compute_capability": staticmethod(lambda device=None: 90),
        "is_triton_capable": staticmethod(lambda device=None: True),
        "raise_if_triton_unavailable": staticmethod(lambda device=None: None),
    }
    return type("StandIn", (CudaInterface,), {"Worker": Worker, **own})


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """While it lasts, this process answers as one with an H200. Not for threads: torch.cuda itself is changed."""
    import torch.utils._triton as triton_facts
    from torch._dynamo import device_interface
    from torch._subclasses import FakeTensorMode, fake_tensor

    device_interface.get_interface_for_device("cpu")  # fills the table
    with contextlib.ExitStack() as changed:
        for name, answer in _ANSWERS.items():
            changed.enter_context(mock.patch.object(torch.cuda, name, answer, create=True))
        changed.enter_context(mock.patch.dict(device_interface.device_interfaces, {"cuda": _interface()}))
        # Of a device that is available, fake tensors take a context and compute constants there.
        changed.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", lambda device: None))
        changed.enter_context(mock.patch.object(FakeTensorMode, "avoid_device_init", True))
        changed.enter_context(mock.patch.object(triton_facts, "triton_hash_with_backend", lambda *given: ""))
        remembered = [one for one in vars(triton_facts).values() if hasattr(one, "cache_clear")]
        for answer in remembered:  # of the machine as it is
            answer.cache_clear()
            changed.callback(answer.cache_clear)
        yield
