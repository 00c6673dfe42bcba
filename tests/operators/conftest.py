"""Every module of tests ends the threads that it started."""

from collections.abc import Iterator

import pytest

from tests.operators.support_llm import WIRE


@pytest.fixture(scope="module", autouse=True)
def _wire() -> Iterator[None]:
    yield
    WIRE.close()
