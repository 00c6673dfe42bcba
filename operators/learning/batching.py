"""A slow model in a thread of its own: decisions that come while it works are scored together, and none waits long."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from operators.learning.policy_features import Observation

MOST = 4  # decisions at once: on a CPU that many take as many times as long
LATENCY_S = 10.0

_Request = tuple[Observation, "Future[tuple[Tensor, Tensor]]"]


class BatchedModel:
    """`load` makes the model, at the first call. Thread-safe; the thread ends with the process.

    A call raises TimeoutError after `latency_s`, of which loading takes nothing, and what the model raised.
    """

    def __init__(self, load: Callable[[], Any], latency_s: float = LATENCY_S) -> None:
        self._load, self._latency_s = load, latency_s
        self._waiting: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._lock, self._loaded = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, sights: Sequence[Observation]) -> tuple[Tensor, Tensor]:
        """(scores [1, offers], values [1]) of the one decision in `sights`."""
        (sight,) = sights
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="policy model")
                self._thread.start()
        answer: Future[tuple[Tensor, Tensor]] = Future()
        self._waiting.put((sight, answer))
        self._loaded.wait()
        try:
            return answer.result(self._latency_s)
        finally:
            answer.cancel()

    def _work(self) -> None:
        model, failed = None, None
        try:
            model = self._load()
        except Exception as error:  # noqa: BLE001 (whoever asks is told)
            failed = error
        self._loaded.set()
        while True:
            taken = [self._waiting.get()]
            while len(taken) < MOST and not self._waiting.empty():
                taken.append(self._waiting.get())
            open_ones = [one for one in taken if one[1].set_running_or_notify_cancel()]
            if not open_ones:
                continue
            try:
                if model is None:
                    raise failed or RuntimeError("the model is not loaded")
                with torch.inference_mode():
                    scores, values = model([sight for sight, _ in open_ones])
            except Exception as error:  # noqa: BLE001 (whoever asks is told)
                for _, answer in open_ones:
                    answer.set_exception(error)
                continue
            for (sight, answer), row, value in zip(open_ones, scores, values, strict=True):
                answer.set_result((row[None, : len(sight.offered)], value[None]))
