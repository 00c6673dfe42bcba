"""Reads clocks, power and temperature of the GPU through NVML. Never changes settings."""

from __future__ import annotations

import ctypes
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GpuState:
    """State of a GPU; NaN for unknown values."""

    clock_mhz: float = math.nan  # of the SMs
    memory_clock_mhz: float = math.nan
    power_w: float = math.nan
    celsius: float = math.nan

    def as_data(self) -> dict[str, float]:
        """Known values only: JSON has no NaN."""
        return {name: value for name, value in asdict(self).items() if not math.isnan(value)}


class Nvml:
    """One GPU by its uuid, or the first one. Errors are not raised: `read` returns NaN."""

    _SM, _MEMORY = 1, 2  # nvmlClockType_t
    _TEMPERATURE_GPU = 0

    def __init__(self, uuid: str = "") -> None:
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() != 0:
                return
            name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
            found = uuid and library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)) == 0
            if found or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)) == 0:
                self._library = library
        except (OSError, AttributeError):  # no driver, or a driver without the function
            return

    def read(self) -> GpuState:
        """Current state; takes from some tens of microseconds to a few milliseconds."""
        if self._library is None:
            return GpuState()
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return GpuState(
            clock_mhz=self._number("nvmlDeviceGetClockInfo", self._SM),
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", self._MEMORY),
            power_w=milliwatts / 1000.0,
            celsius=self._number("nvmlDeviceGetTemperature", self._TEMPERATURE_GPU),
        )

    @property
    def arch(self) -> int:
        """Compute capability × 10; 0 if unknown."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        query = getattr(self._library, "nvmlDeviceGetCudaComputeCapability", None)
        if query is None or query(self._handle, ctypes.byref(major), ctypes.byref(minor)) != 0:
            return 0
        return 10 * major.value + minor.value

    def _number(self, function: str, *arguments: int) -> float:
        value = ctypes.c_uint()
        try:
            code = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(value))
        except AttributeError:
            return math.nan
        return float(value.value) if code == 0 else math.nan
