"""Folders that nobody asks for any more, deleted beside the run: neither the loop nor the end of the process waits for the disk.

delete ──▶ waiting ──one after the other──▶ a daemon thread, which ends when nothing waits
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Deleter"]


class Deleter:
    """Of one run. What cannot be deleted stays where it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Path, None] = {}  # in the order in which they came
        self._thread: threading.Thread | None = None

    def delete(self, folders: Iterable[Path]) -> None:
        """At once: it takes as long as the disk does until they are gone. One that waits does so once.

        One that is being deleted may have been made anew meanwhile: it waits.
        """
        with self._lock:
            self._waiting.update(dict.fromkeys(folders))
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deleting", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until all is deleted; False where that takes longer."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def _run(self) -> None:
        while (folder := self._next()) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _next(self) -> Path | None:
        with self._lock:
            folder = next(iter(self._waiting), None)
            if folder is None:
                self._thread = None
            else:
                del self._waiting[folder]
            return folder
