"""What all tests share."""

import gc
import os
from collections.abc import Generator, Iterator

import pytest

from evo_kernel.processes import keep_memory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does: small matrices, other threads at work
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads would spin while other workers have the processors
keep_memory()  # as the command line does
gc.set_threshold(50_000)  # as the command line does


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: the garbage collector looks at none of it, neither now nor beside the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_memory_of_other_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What earlier runs found out on this machine is not used, nor added to: see evo_kernel/user_cache.py."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
