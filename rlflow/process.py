"""A process of ours never outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the direct parent, process `parent`, ends; leave at once if it has ended already.

    The kernel watches the *thread* that started this process: start it from one that lives as long as the parent, usually the
    main thread. Linux only (prctl); elsewhere a warning says what is missing.
    """
    if not sys.platform.startswith("linux"):
        print(f"rlflow: {sys.platform} cannot tie a process to its parent; kill -9 of the parent would leave it behind", file=sys.stderr)
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        _leave(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        _leave(f"the parent is process {os.getppid()}, not {parent}: it has ended, or it is not the direct parent")


def _leave(why: str) -> None:
    print(f"rlflow: {why}", file=sys.stderr, flush=True)
    os._exit(1)
