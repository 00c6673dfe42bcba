"""Executes launches of trusted Triton kernels on CPU tensors: `install` redirects all launches of this process.

For references and tests that are Triton kernels, on a machine without a GPU. A launch is bound and lowered as in the
recorder (record/launches.py), and its IR runs on copies of the tensors' storages. Accesses are not checked: reads past
an end return zeros, undefined values are arbitrary, races have one result.
"""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.ir.execute import Traits, buffers_of, launch, traits_of
from evo_kernel.fitness.ir.memory import DeviceBuffer, DeviceMemory
from evo_kernel.fitness.ir.module import IRModule
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Launch, Scalar
from evo_kernel.fitness.record.device import target_driver
from evo_kernel.fitness.record.launches import LaunchWriter
from evo_kernel.fitness.record.tracing import ADDRESS_BITS, PlanTracer
from evo_kernel.tasks.helper_process import answer_requests
from evo_kernel.tasks.interpreted import answer_of

_ARCH = 90  # compute capability × 10


def install() -> None:
    """Execute every Triton launch of this process on the CPU.

    Autotuners use their first configuration.
    """
    executing = _Executing(_ARCH, {})
    writer = LaunchWriter(executing)

    def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            writer.triton(kernel, args, grid, warmup, options)

    def address(tensor: torch.Tensor) -> int:
        return executing.address(tensor)

    triton.runtime.driver.set_active(target_driver(target_for(_ARCH), torch.device("cpu")))
    torch.Tensor.data_ptr = address  # pyright: ignore[reportAttributeAccessIssue]
    JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
    Autotuner.run = _first  # pyright: ignore[reportAttributeAccessIssue]


def _first(tuner: Autotuner, *args: Any, **kwargs: Any) -> Any:
    config = tuner.configs[0]
    given = {**config.all_kwargs(), **kwargs}
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **given})
    return tuner.fn.run(*args, **given)


class _Executing(PlanTracer):
    """Receives launches like a plan tracer and executes each one.

    Addresses stay valid while their storage lives, so that kernels may get tables of them.
    """

    def __init__(self, arch: int, resources: dict[str, Any]) -> None:
        super().__init__(arch, resources)
        self._alive: list[weakref.ref[torch.UntypedStorage] | None] = []

    def _buffer(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        number = self._storages.get(storage._cdata)
        if number is not None and self._storage(number) is storage:
            return number
        number = next((n for n in range(len(self._alive)) if self._storage(n) is None), len(self._alive))
        self._alive[number : number + 1] = [weakref.ref(storage)]
        self._storages[storage._cdata] = number
        return number

    def _storage(self, number: int) -> torch.UntypedStorage | None:
        storage = self._alive[number] if 0 <= number < len(self._alive) else None
        return None if storage is None else storage()

    def pointer(self, value: torch.Tensor) -> dict[str, Any]:
        """Pointer to a tensor, or to any object with an address, as Triton accepts it."""
        address = value.data_ptr()
        number, offset = (address >> ADDRESS_BITS) - 1, address & ((1 << ADDRESS_BITS) - 1)
        return {"kind": "pointer", "buffer": number, "offset": offset}

    def kernel(self, spec: dict[str, Any]) -> int:
        self.kernels = [spec]
        return 0

    def note(self, node: dict[str, Any]) -> None:
        """Raises RuntimeError where the kernel does what no correct kernel does."""
        launch_node, spec = Launch.model_validate(node), self.kernels[0]
        module, traits = read(spec["code"])
        numbers = {arg.buffer for arg in launch_node.args if not isinstance(arg, Scalar)}
        stored = buffers_of(module.entry, launch_node.args, traits.stored)
        if any(operation.name == "tt.int_to_ptr" for operation in module.operations()):  # it may go anywhere
            numbers = stored = {n for n in range(len(self._alive)) if self._storage(n) is not None}
        contents = {n: _bytes(storage) for n in numbers if (storage := self._storage(n)) is not None}
        memory = DeviceMemory(strict=False)
        memory.buffers = [DeviceBuffer(0, defined=True, content=0)] * (max(contents, default=-1) + 1)
        for number, content in contents.items():
            memory.buffers[number] = DeviceBuffer(content.numel(), defined=True, content=0, name=f"buffer {number}")
            memory.buffers[number].data.copy_(content)
        done = launch(module, launch_node.grid, launch_node.args, memory, traits=traits)
        if done.finding is not None:
            raise RuntimeError(f"kernel {spec['name']}: {done.finding.sentence}")
        for number in stored & contents.keys():
            contents[number].copy_(memory.buffers[number].data)


@lru_cache(maxsize=256)
def read(text: str) -> tuple[IRModule, Traits]:
    module = parse(text)
    return module, traits_of(module)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # pyright: ignore[reportArgumentType]


def serve() -> None:
    """Run references which are Triton kernels: answer `Interpreted`'s requests until the input ends. Not confined.

    evo_kernel/tasks/interpreted.py starts it. It runs the user's own checkout, which is trusted.
    """
    install()
    torch.set_num_threads(1)
    answer_requests(answer_of())
