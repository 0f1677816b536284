"""How the process tells that it serves."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["write_ready_file"]


def write_ready_file(path: Path, url: str) -> None:
    """Write {"url", "pid"} in one rename: a reader sees all of it or nothing."""
    building = path.with_name(f".{path.name}.{os.getpid()}")
    building.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    building.rename(path)
