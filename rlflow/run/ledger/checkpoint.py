"""Copying SQLite's log into the file beside the commits: a thread with a connection of its own, so that none of them waits for the disk.

COMMITS commits ──▶ the thread copies what is in the log by then ──all of it, and no commit in between──▶ the log begins anew
                                                                 └─never so, up to MOST_PAGES─▶ a commit copies the rest itself
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

__all__ = ["Checkpointer"]

COMMITS = 1024
MOST_PAGES = 1 << 15


class Checkpointer:
    """Of one ledger in WAL mode; its connection makes no checkpoint by itself. Nothing is lost if it never comes to an end."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._commits = self._pages = 0
        self._thread: threading.Thread | None = None

    def make_room(self) -> None:
        """Before each commit. Raises sqlite3.DatabaseError where the log is too long and cannot be copied."""
        self._commits += 1
        if self._commits < COMMITS or (self._thread is not None and self._thread.is_alive()):
            return
        self._commits = 0
        if self._pages > MOST_PAGES:
            self._pages = _copy(self._connection)
            return
        self._thread = threading.Thread(target=self._beside, name="ledger checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for a copy that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _beside(self) -> None:
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
                self._pages = _copy(connection)
        except sqlite3.DatabaseError:  # a disk without room: the log stays, and what cannot wait any more is said by a commit
            self._pages = MOST_PAGES + 1


def _copy(connection: sqlite3.Connection) -> int:
    """Pages of the log, as many as stand in the way of no other; 0 if it begins anew with the next commit."""
    _, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return 0 if pages == copied else int(pages)
