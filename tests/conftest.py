"""What all tests share."""

import os
import socket
from collections.abc import Iterator
from typing import BinaryIO

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does: small matrices, other threads at work

from evo_kernel.fitness.confined.zygote import Zygote
from tests.support.nursery import Born, Nurseries


@pytest.fixture(scope="session", autouse=True)
def _nurseries() -> Iterator[None]:
    """Judges of this process get their zygotes from a warm process. Those of processes that tests start do not."""
    nurseries = Nurseries()

    def spawn(born: Zygote, control: socket.socket, log: BinaryIO) -> Born:
        return nurseries.spawn(born, control, log)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Zygote, "_spawn", spawn)
        yield
    nurseries.close()
