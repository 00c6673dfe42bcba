"""What runs beside a command: its signals (the first lets what is under way finish, the second stops it), threads."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def ending_twice(finish: Callable[[str], None], stop: Callable[[str], None]) -> Iterator[None]:
    """The first signal calls `finish`, and says what the next ones do: call `stop`. Both get the signal's name.

    For the main thread; afterwards the signals go to whoever had them before.
    """
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

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread until the block ends, which sets the event that it gets."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
