"""^C and SIGTERM while something is under way that has to be ended well."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def handling(handle: Handler) -> Iterator[None]:
    """Inside, `handle` gets both signals; afterwards whoever had them before. For the main thread."""
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
