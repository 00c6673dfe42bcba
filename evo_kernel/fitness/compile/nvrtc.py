"""Compiles CUDA C++ to machine code with NVRTC, NVIDIA's run-time compiler, through ctypes. Needs no GPU.

The library is part of torch's CUDA builds, of the package `nvidia-cuda-nvrtc` (the extra `cuda`) and of CUDA toolkits.
CUDA's headers (half, bfloat16, mma, cooperative groups) are part of Triton. Source: NVRTC reference.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass
from pathlib import Path

MISSING = (
    "CUDA C++ needs NVRTC, which is not installed here: pip install 'evo-kernel[cuda]', or any CUDA 12 or 13 toolkit"
)
_SYSTEM = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_TYPES = "".join(
    f"typedef {sign}{kind} {letter}int{bits}_t;\n"
    for sign, letter in (("signed ", ""), ("unsigned ", "u"))
    for kind, bits in (("char", 8), ("short", 16), ("int", 32), ("long long", 64))
)
_MATH = "#pragma once\n#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n"
_OWN_HEADERS = {"stdint.h": f"#pragma once\n{_TYPES}", "math.h": _MATH}
_OWN_HEADERS |= {"cstdint": _OWN_HEADERS["stdint.h"], "cmath": _MATH}
"""What NVRTC lacks of the C library: fixed-width integers and two constants; the functions are built in."""
_SILENT_HEADER = "evo_kernel_silent.h"
_OWN_HEADERS[_SILENT_HEADER] = """#pragma once
template <class... Values>
__device__ __forceinline__ int __evo_kernel_evaluated(Values&&...) { return 0; }
#define printf(...) __evo_kernel_evaluated(__VA_ARGS__)
#undef assert
#define assert(...) ((void)0)
"""
_CLOCK_HEADER = "cuda/std/__cuda/chrono.h"
_READS_CLOCK = re.compile(r'asm volatile\s*\("mov\.u64 %0, %%globaltimer;"[^;]*;')
"""CCCL's one: cuda::barrier and cuda::pipeline of a block wait by it, and a kernel that reads a clock is refused."""
SILENT = f"--pre-include={_SILENT_HEADER}"
"""The option by which printf and assert say nothing. Their texts would be writable memory of the module."""


EXPLAINED = ("--generate-line-info", "--ptxas-options=--verbose")
"""Options by which the cubin names source lines, and the log holds what the assembler says."""


class CudaTextError(Exception):
    """The text does not compile, or NVRTC is missing; the message is for the text's author."""


@dataclass(frozen=True)
class NvrtcResult:
    """Machine code of an entry function. `symbol`: its name in the cubin; `log`: messages of compiler and assembler."""

    symbol: str
    cubin: bytes
    ptx: str
    log: str


@dataclass(frozen=True)
class Nvrtc:
    """The loaded library. `folders`: of the library and its parts; `include`: searched by #include <...>."""

    library: ctypes.CDLL
    folders: tuple[str, ...]
    include: tuple[str, ...]

    @property
    def version(self) -> str:
        major, minor = c_int(), c_int()
        self._ok(self.library.nvrtcVersion(byref(major), byref(minor)))
        return f"{major.value}.{minor.value}"

    def compile(self, code: str, name: str, arch: int, flags: tuple[str, ...]) -> NvrtcResult:
        """Raises CudaTextError with the compiler's own messages."""
        program = c_void_p()
        headers = _OWN_HEADERS | _without_clock(self.include)
        texts = (c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (c_char_p * len(headers))(*(header.encode() for header in headers))
        create = self.library.nvrtcCreateProgram
        self._ok(create(byref(program), code.encode(), b"kernel.cu", len(headers), texts, names))
        try:
            self._ok(self.library.nvrtcAddNameExpression(program, name.encode()))
            suffix = "a" if arch >= 90 else ""  # architecture-specific features, as Triton uses them
            options = [f"--gpu-architecture=sm_{arch}{suffix}", "--std=c++17", *flags]
            options += [f"--include-path={folder}" for folder in self.include]
            packed = (c_char_p * len(options))(*(option.encode() for option in options))
            failed = self.library.nvrtcCompileProgram(program, len(options), packed) != 0
            log = self._text(program, "ProgramLog")
            if failed:
                raise CudaTextError(log or "NVRTC gives no reason")
            symbol = c_char_p()
            self._ok(self.library.nvrtcGetLoweredName(program, name.encode(), byref(symbol)))
            cubin, ptx = self._bytes(program, "CUBIN"), self._text(program, "PTX")
            return NvrtcResult((symbol.value or b"").decode(), cubin, ptx, log)
        finally:
            self.library.nvrtcDestroyProgram(byref(program))

    def _text(self, program: c_void_p, what: str) -> str:
        return self._bytes(program, what).decode(errors="replace").strip("\0 \n")

    def _bytes(self, program: c_void_p, what: str) -> bytes:
        size = c_size_t()
        self._ok(getattr(self.library, f"nvrtcGet{what}Size")(program, byref(size)))
        data = create_string_buffer(max(1, size.value))
        self._ok(getattr(self.library, f"nvrtcGet{what}")(program, data))
        return data.raw[: size.value]

    def _ok(self, code: int) -> None:
        if code != 0:
            raise CudaTextError(f"NVRTC: {(self.library.nvrtcGetErrorString(code) or b'').decode()}")


def _without_clock(folders: Iterable[str]) -> dict[str, str]:
    """CCCL's header of clocks, by its name, with a clock that stands still: what waits yields and never sleeps."""
    for folder in folders:
        path = Path(folder, _CLOCK_HEADER)
        if path.is_file():
            return {_CLOCK_HEADER: _READS_CLOCK.sub("__time = 0;", path.read_text(encoding="utf-8"))}
    return {}


def load(paths: Iterable[str] | None = None) -> Nvrtc:
    """The first NVRTC that is found, of the usual `paths`. Raises CudaTextError with what to install."""
    for path in _candidates() if paths is None else paths:
        folder = os.path.dirname(path)
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = c_char_p
        library.nvrtcGetErrorString.argtypes = [c_int]
        for name in sorted(glob.glob(os.path.join(folder, "libnvrtc-builtins.so*"))):
            ctypes.CDLL(name)  # the compiler opens it by name at its first compilation
        return Nvrtc(library, (folder,), _headers(folder))
    raise CudaTextError(MISSING)


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        yield from sorted(glob.glob(os.path.join(place, "*", "lib", "libnvrtc.so*")), reverse=True)
    for place in _SYSTEM:
        yield from sorted(glob.glob(os.path.join(place, "libnvrtc.so*")), reverse=True)


def _headers(folder: str) -> tuple[str, ...]:
    """Header folders: CUDA's next to the library, or Triton's copy; and CUDA's C++ library (CCCL).

    The packages of PyTorch's CUDA build lack `crt`, which `mma.h` includes; Triton's copy is complete.
    """
    beside = os.path.join(os.path.dirname(folder), "include")
    spec = importlib.util.find_spec("triton")
    roots = spec.submodule_search_locations or () if spec else ()
    places = [beside, *(os.path.join(root, "backends", "nvidia", "include") for root in roots)]
    folders = [place for place in places if os.path.exists(os.path.join(place, "cuda_fp16.h"))]
    folders.sort(key=lambda place: not os.path.isdir(os.path.join(place, "crt")))  # complete copies first
    library = os.path.join(beside, "cccl")
    return (*folders[:1], library) if os.path.isdir(library) else tuple(folders[:1])
