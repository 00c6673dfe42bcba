"""Coders: who carries a strategy out. The offline rewriter is one; a language model can be another."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Source, Strategy, TaskCard
from operators.micro.module import KernelModule
from operators.micro.rewrites import REWRITES, RewriteFailed

CACHE_ENTRIES = 512


class Coder(Protocol):
    """Offers what it can do to a source, and does one of it. Thread-safe."""

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]: ...

    def implement(self, source: Source, strategy: Strategy, task: TaskCard) -> Source:
        """The new source. Raises OperatorFailed."""
        ...


class RewriteCoder:
    """The offline rewriter as a coder: real transformations of Triton source, no model needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules: OrderedDict[str, KernelModule | None] = OrderedDict()

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        module = self._parsed(source)
        if module is None:
            return ()
        return tuple(strategy for rewrite in REWRITES.values() for strategy in rewrite.offers(module, task))

    def implement(self, source: Source, strategy: Strategy, task: TaskCard) -> Source:
        del task
        module = self._parsed(source)
        rewrite = REWRITES.get(strategy.name)
        if module is None or rewrite is None:
            raise OperatorFailed(f"the rewriter does not know {strategy.name} or cannot read the source")
        try:
            text = rewrite.apply(module, strategy)
        except RewriteFailed as failure:
            raise OperatorFailed(f"{strategy.key}: {failure.reason}") from failure
        if text == source.text:
            raise OperatorFailed(f"{strategy.key} changes nothing here")
        return Source(text, source.language)

    def _parsed(self, source: Source) -> KernelModule | None:
        """The parsed module; None where it cannot be read. Parsing takes tens of milliseconds, so it is kept."""
        with self._lock:
            if source.sha256 in self._modules:
                self._modules.move_to_end(source.sha256)
                return self._modules[source.sha256]
        try:
            module = KernelModule.parse(source.text)
        except ValueError:
            module = None
        with self._lock:
            self._modules[source.sha256] = module
            while len(self._modules) > CACHE_ENTRIES:
                self._modules.popitem(last=False)
        return module
