"""CUDA C++ to machine code through NVRTC, NVIDIA's run-time compiler, called by ctypes. Needs no GPU.

The library comes with torch's CUDA builds, with the wheel `nvidia-cuda-nvrtc` (the extra `cuda`) or with a CUDA
toolkit. The language's own headers (half, bfloat16, mma, cooperative groups) come with Triton. Source: NVRTC reference.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass

MISSING = (
    "CUDA C++ needs NVRTC, which is not installed here: pip install 'evo-kernel[cuda]', or any CUDA 12 or 13 toolkit"
)
_SYSTEM = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")


class CudaTextError(Exception):
    """The text does not compile, or there is nothing to compile it with; the message is for its author."""


@dataclass(frozen=True)
class Compiled:
    """An entry function in machine code. `symbol`: its name in the cubin."""

    symbol: str
    cubin: bytes


@dataclass(frozen=True)
class Nvrtc:
    """The loaded library. `folders`: where it and its parts lie; `include`: where #include <...> looks."""

    library: ctypes.CDLL
    folders: tuple[str, ...]
    include: tuple[str, ...]

    def compile(self, code: str, name: str, arch: int, flags: tuple[str, ...]) -> Compiled:
        """Raises CudaTextError with the compiler's own messages."""
        program = c_void_p()
        self._ok(self.library.nvrtcCreateProgram(byref(program), code.encode(), b"kernel.cu", 0, None, None))
        try:
            self._ok(self.library.nvrtcAddNameExpression(program, name.encode()))
            suffix = "a" if arch >= 90 else ""  # as Triton: with what only this architecture has
            options = [f"--gpu-architecture=sm_{arch}{suffix}", "--std=c++17", *flags]
            options += [f"--include-path={folder}" for folder in self.include]
            packed = (c_char_p * len(options))(*(option.encode() for option in options))
            if self.library.nvrtcCompileProgram(program, len(options), packed) != 0:
                raise CudaTextError(self._text(program, "ProgramLog") or "NVRTC gives no reason")
            symbol = c_char_p()
            self._ok(self.library.nvrtcGetLoweredName(program, name.encode(), byref(symbol)))
            return Compiled((symbol.value or b"").decode(), self._bytes(program, "CUBIN"))
        finally:
            self.library.nvrtcDestroyProgram(byref(program))

    def _bytes(self, program: c_void_p, what: str) -> bytes:
        size = c_size_t()
        self._ok(getattr(self.library, f"nvrtcGet{what}Size")(program, byref(size)))
        data = create_string_buffer(max(1, size.value))
        self._ok(getattr(self.library, f"nvrtcGet{what}")(program, data))
        return data.raw[: size.value]

    def _text(self, program: c_void_p, what: str) -> str:
        return self._bytes(program, what).decode(errors="replace").strip("\0 \n")

    def _ok(self, code: int) -> None:
        if code != 0:
            raise CudaTextError(f"NVRTC: {(self.library.nvrtcGetErrorString(code) or b'').decode()}")


def load() -> Nvrtc:
    """The first NVRTC that is found. Raises CudaTextError with what to install."""
    for path in _candidates():
        folder = os.path.dirname(path)
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = c_char_p
        library.nvrtcGetErrorString.argtypes = [c_int]
        for name in sorted(glob.glob(os.path.join(folder, "libnvrtc-builtins.so*"))):
            ctypes.CDLL(name)  # the compiler looks for it by name when it first compiles
        return Nvrtc(library, (folder,), _headers(folder))
    raise CudaTextError(MISSING)


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        yield from sorted(glob.glob(os.path.join(place, "*", "lib", "libnvrtc.so*")), reverse=True)
    for place in _SYSTEM:
        yield from sorted(glob.glob(os.path.join(place, "libnvrtc.so*")), reverse=True)


def _headers(folder: str) -> tuple[str, ...]:
    """Header folders: Triton's own copy of CUDA's, and those beside the library where they hold more."""
    spec = importlib.util.find_spec("triton")
    places = (
        [os.path.join(p, "backends", "nvidia", "include") for p in (spec.submodule_search_locations or ())]
        if spec
        else []
    )
    beside = os.path.join(os.path.dirname(folder), "include")
    found = [place for place in (beside, *places) if os.path.exists(os.path.join(place, "cuda_fp16.h"))]
    return tuple(found[:1])
