"""One process a run folder: a second run or resume of the same one is refused.

run.lock   held by `flock` for as long as the process lives, however it ends; inside stands its process id
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ...errors import UsageError

FILE = "run.lock"
PATIENCE = 0.5  # seconds: `holder` of another process takes it for a moment


class RunLock:
    """Held from its making until ``release``, or the end of the process. Raises UsageError when another process holds it."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _take(self._fd, PATIENCE):
            pid = _pid(self._fd)
            os.close(self._fd)
            raise UsageError(
                f"run {folder} is being worked on by process {pid}: only one may write it. Wait for it to end, or stop it: kill -INT {pid}"
            )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def holder(folder: Path) -> int | None:
    """Id of the process that works on this run; None: nobody does. Writes nothing, so that the folder may be read-only."""
    try:
        fd = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _take(fd, 0.0, fcntl.LOCK_SH) else _pid(fd)
    finally:
        os.close(fd)


def _take(fd: int, patience: float, kind: int = fcntl.LOCK_EX) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _pid(fd: int) -> int:
    """0 if it is not written yet."""
    said = os.pread(fd, 32, 0).strip()
    return int(said) if said.isdigit() else 0
