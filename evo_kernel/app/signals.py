"""SIGINT and SIGTERM while something is under way that has to be ended well."""

from __future__ import annotations

import contextlib
import os
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


@contextlib.contextmanager
def ending_twice(finish: Callable[[str], None], stop: Callable[[str], None]) -> Iterator[None]:
    """The first signal calls `finish`, and says what the next ones do: call `stop`. Both get the signal's name."""
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        seen.append(number)
        if len(seen) > 1:
            stop(name)
            return
        finish(name)
        # Not by a stream: the handler may have interrupted somebody who writes to it.
        os.write(2, f"\n{name}: finishing what is under way; once more stops it now\n".encode())

    with handling(handle):
        yield
