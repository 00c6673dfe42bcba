"""News of a run as server-sent events: a small pulse whenever something changed.

However many streams are open, the file is looked at once a second. A page that hears of news asks for itself again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from evo_kernel.dashboard.runs import LOOK_S, Run

MOST = 64
"""Streams at a time."""
QUIET_S = 15.0
"""After so long without news a comment goes out, so that whoever left is noticed."""


class Streams:
    """`stream_s`: seconds that a stream lives."""

    def __init__(self, stream_s: float) -> None:
        self._stream_s, self._open = stream_s, 0

    def open(self, run: Run) -> Response:
        if self._open >= MOST:
            return PlainTextResponse(f"{MOST} streams are open already.\n", 503, {"retry-after": "30"})
        return StreamingResponse(self._news(run), media_type="text/event-stream")

    async def _news(self, run: Run) -> AsyncIterator[str]:
        self._open += 1
        try:
            ends_at, told, told_at = time.monotonic() + self._stream_s, "", time.monotonic()
            yield "retry: 3000\n\n"
            while True:
                news = json.dumps(await run_in_threadpool(run.pulse))
                if news != told:
                    told, told_at = news, time.monotonic()
                    yield f"event: pulse\ndata: {news}\n\n"
                elif time.monotonic() - told_at > QUIET_S:
                    told_at = time.monotonic()
                    yield ": nothing new\n\n"
                if time.monotonic() >= ends_at:
                    return
                await asyncio.sleep(min(LOOK_S, self._stream_s))
        finally:
            self._open -= 1
