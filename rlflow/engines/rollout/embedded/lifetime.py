"""How long the process lives: as long as its parent, and until SIGTERM or SIGINT."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

__all__ = ["die_with_parent", "write_ready_file"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux prctl); exits at once if it has ended already.

    `parent_pid` must be the direct parent. The kernel watches the *thread* that started this process: start it from one that
    lives as long as the parent, usually the main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}; start the server without --parent-pid")
    if os.getppid() != parent_pid:  # it ended before the call, or was never our parent
        sys.exit(f"the parent is process {os.getppid()}, not {parent_pid}: it has ended, or --parent-pid is not the direct parent")


def write_ready_file(path: Path, url: str) -> None:
    """Write {"url", "pid"} in one rename: a reader sees all of it or nothing."""
    building = path.with_name(f".{path.name}.{os.getpid()}")
    building.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    building.rename(path)
