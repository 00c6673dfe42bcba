"""A child process: run seeds in Triton's interpreter, for as long as it is asked (tests/tasks/children.py).

Each line of its input is JSON, {"seed": path, "inputs": path, "outputs": path}. The file of inputs holds a list of
(knobs, input tuple) (torch.save); that of outputs becomes the list of their output tuples. Knobs are set by name, as the
tuner does, and stay until others are. The interpreter multiplies bfloat16 and 8-bit floats as if their bits were integers and cuts
where a GPU rounds to nearest even; both are mended here, so that what is seen is the seed's own error.
"""

import importlib.util
import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from children import answer
from triton.runtime import interpreter

from evo_kernel.fitness.interpreting.device_functions import take_single_elements

take_single_elements(interpreter)

convert_as_shipped = interpreter._convert_float
dot_as_shipped = interpreter.InterpreterBuilder.create_dot


def convert(data, from_type, to_type, rounding):
    if from_type == tl.float32 and to_type == tl.bfloat16:
        values = torch.from_numpy(np.array(data, dtype=np.float32, ndmin=1))
        return values.bfloat16().view(torch.int16).numpy().view(np.uint16).reshape(data.shape)
    return convert_as_shipped(data, from_type, to_type, rounding)


def widened(handle):
    if handle.dtype == tl.float8e4nv:
        data = torch.from_numpy(handle.data.view(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
        return interpreter.TensorHandle(data, tl.float32)
    if handle.dtype != tl.bfloat16:
        return handle
    data = convert_as_shipped(handle.data, tl.bfloat16, tl.float32, None).view(np.float32).reshape(handle.data.shape)
    return interpreter.TensorHandle(data, tl.float32)


def dot(self, a, b, *rest):
    return dot_as_shipped(self, widened(a), widened(b), *rest)


def interpret(seed, inputs, outputs):
    spec = importlib.util.spec_from_file_location("seed", seed)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = []
    for knobs, values in torch.load(inputs):
        for name, value in knobs.items():
            assert hasattr(module, name), f"{seed} has no {name}"
            setattr(module, name, value)
        results.append(module.run(*values))
    torch.save([(result,) if isinstance(result, torch.Tensor) else tuple(result) for result in results], outputs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
    answer(interpret)
