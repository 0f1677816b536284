"""What is to be written whole, and what is to outlive a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: Any, path: Path) -> None:
    """Write all bytes of a buffer to the open file `path`, in one call as a rule. Raises OSError, with a part of them written."""
    left = memoryview(data).cast("B")
    while left:
        try:
            wrote = os.write(descriptor, left)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        if not wrote:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        left = left[wrote:]
