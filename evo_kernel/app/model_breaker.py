"""Circuit breaker for language models: whether one is worth asking now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from evo_kernel.budget import Ledger
from operators.llm.base import ModelFailed
from operators.llm.limits import Endpoint

WRONG = 3  # answers in a row that say the question itself is wrong, before no more are asked


class ModelBreaker:
    """Whether a model is worth asking now. Thread-safe.

    Shut for good when the money is out, or when every question is turned down as invalid; for a while, when all
    endpoints are down. `tell` hears of each once.
    """

    def __init__(self, endpoints: Sequence[Endpoint], ledger: Ledger, tell: Callable[[str], None]) -> None:
        self._endpoints, self._ledger, self._tell = endpoints, ledger, tell
        self._lock = threading.Lock()
        self._for_good, self._wrong, self._was_down = "", 0, False

    def heard(self, failure: ModelFailed | None) -> None:
        """How a question went."""
        with self._lock:
            self._wrong = self._wrong + 1 if failure is not None and failure.kind == "invalid" else 0
            news = ""
            if failure is not None and not self._for_good:
                if failure.kind == "budget":
                    news = f"the budget for models is spent: {failure.reason}"
                elif self._wrong >= WRONG:
                    news = f"no model can be asked: {failure.reason}"
            self._for_good = self._for_good or news
        if news:
            self._ledger.out_of_money(news)  # where nothing but models is asked, the run ends
            self._tell(news)

    def shut(self) -> str:
        """Why no model is to be asked now; empty when one may be."""
        with self._lock:
            if self._for_good:
                return self._for_good
            down = self.rest_s() > 0
            news = down != self._was_down
            self._was_down = down
        if news:
            names = ", ".join(endpoint.name for endpoint in self._endpoints)
            self._tell(
                f"models do not answer ({names}); they are asked again later" if down else "models are asked again"
            )
        return "models do not answer for now" if down else ""

    def rest_s(self) -> float:
        """Seconds until an endpoint lets somebody through."""
        return min((endpoint.resting_s() for endpoint in self._endpoints), default=0.0)

    def wait(self) -> None:
        """Until models may be asked, or the run is over."""
        while (rest := self.rest_s()) > 0 and not self._ledger.ending(min(rest, 5.0)):
            pass
