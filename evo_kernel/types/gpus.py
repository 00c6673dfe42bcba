"""Names of the GPUs whose times are modeled: one for each compute capability × 10."""

from __future__ import annotations

MODELED_GPUS = {
    80: "A100-SXM4-80GB",
    86: "GeForce RTX 3090",
    89: "GeForce RTX 4090",
    90: "H200",
    100: "B200",
    120: "GeForce RTX 5090",
}
_SPOKEN_WITH_A_VOWEL = "AH"  # an A100, an H200; a B200


def label_of(kind: str, device: str) -> str:
    """What every surface shows beside a number; `kind`: "measured" or "modeled"."""
    return f"modeled for {modeled_gpu(device)}" if kind == "modeled" else f"{kind} ({device})"


def modeled_gpu(device: str) -> str:
    """The GPU that a modeled time is for, such as "an H200 (sm_90)"; `device`: "sm_90"."""
    arch = device.removeprefix("sm_")
    name = MODELED_GPUS.get(int(arch), "") if arch.isdecimal() else ""
    if not name:
        return device
    return f"{'an' if name[0] in _SPOKEN_WITH_A_VOWEL else 'a'} {name} ({device})"


def is_hopper(device: str) -> bool:
    """Whether a GPU of this name, as its driver tells it, has compute capability 9.0."""
    return device.startswith(("NVIDIA H100", "NVIDIA H20", "NVIDIA H800", "NVIDIA GH200"))
