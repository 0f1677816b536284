"""A process of ours never outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; leave at once if it is gone already. Linux only, elsewhere a warning."""
    if not sys.platform.startswith("linux"):
        print(f"rlflow: {sys.platform} cannot tie a process to its parent; kill -9 of the parent would leave it behind", file=sys.stderr)
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
