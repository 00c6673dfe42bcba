"""A kernel as a FlashInfer-Bench solution: one JSON file, with its recorded launches inside."""

from __future__ import annotations

import hashlib
from typing import Any


def solution(definition: str, kernel: str, author: str, hardware: str) -> dict[str, Any]:
    """The solution of a definition, named by its content. `kernel`: a module with run(*inputs), see standalone.py."""
    return {
        "name": f"{definition}_{hashlib.sha256(kernel.encode()).hexdigest()[:8]}",
        "definition": definition,
        "author": author,
        "description": "Found by an evolutionary search.",
        "spec": {
            "language": "triton",
            "target_hardware": [hardware],
            "entry_point": "kernel.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "kernel.py", "content": kernel}],
    }
