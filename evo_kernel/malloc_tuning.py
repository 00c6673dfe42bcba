"""Memory of large tensors, for processes that soon end: kept once it is had.

The C library maps every large block anew and gives it back at once. To have its pages zeroed again and again costs a
CPU more than most of what is computed on them.
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # mallopt(3)


def keep_memory() -> None:
    """From now on freed memory stays with this process. Of threads too: those that have none of their own yet."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        for name, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)):
            library.mallopt(name, value)
