"""A kernel as a FlashInfer-Bench solution: one JSON file, with its recorded launches inside."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError


def solution(definition: str, kernel: str, author: str, hardware: str) -> dict[str, Any]:
    """The solution of a definition. `kernel`: the text of a module with run(*inputs), see standalone.py."""
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


def write_solution(found: dict[str, Any], folder: Path) -> Path:
    """Write NAME.json. Raises UserError where it is there already."""
    path = folder / f"{found['name']}.json"
    if path.exists():
        raise UserError(f"{path} exists already; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path
