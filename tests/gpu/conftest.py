"""Tests that need an NVIDIA GPU: `make test-gpu`, or `python -m pytest tests/gpu`. Skipped as a whole elsewhere."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items):
    here = [item for item in items if "tests/gpu/" in str(item.fspath).replace("\\", "/")]
    if torch.version.cuda is None or torch.cuda.device_count() == 0:
        for item in here:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
    for item in here:
        item.add_marker(pytest.mark.gpu)
