"""What of a run outlives a kill: one SQLite file, one transaction a ``decide``, committed before its actions are performed.

    decide ──state.journal──▶ Ledger.commit ──▶ ledger.sqlite ──Ledger.load──▶ Books ──▶ resume

store.py     Ledger: create, open, commit, load, close
schema.py    its tables, its version, and how an older file becomes one of this version
tables.py    a change as the row of a table, and back
checkpoint.py    its log is copied into the file beside the commits
history.py   history.jsonl: a line for all that was ever trained or dropped, tied to the ledger
lock.py      one process a run folder
"""

from .lock import RunLock, holder
from .store import FILE, Ledger, read_books

__all__ = ["FILE", "Ledger", "RunLock", "holder", "read_books"]
