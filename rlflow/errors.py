"""What rlflow raises.

RlflowError
├── CheckFailed     the pipeline is refused before anything runs (rlflow.language.diagnostic)
├── UsageError      a command or an option makes no sense: exit code 2
├── DataError       a data set, a row or a column is not as declared
├── EngineError     an engine answered with an error, or with something else than its contract says
├── PoolError       a key that no longer exists, a column that was never put
│   └── PoolFull    no room in the pool within the timeout
├── LedgerError     the ledger of a run is damaged, of another version, or cannot be written
├── OperatorError   an operator raised in its worker, with the remote traceback; or it wrote into what it was given
├── StartRefused    a process of the run says why it cannot start: a data set, a model or an option of it is wrong
├── WaitTimeout     something did not happen in time: carries the name of the wait
└── WorkerDied      a process of the run is gone: carries its name and how it ended
"""

from __future__ import annotations

__all__ = [
    "DataError", "EngineError", "LedgerError", "OperatorError", "PoolError", "PoolFull", "RlflowError", "StartRefused", "UsageError",
    "WaitTimeout", "WorkerDied",
]  # fmt: skip


class RlflowError(Exception):
    """Base of everything that rlflow raises for its user."""


class UsageError(RlflowError):
    """A command, a path or an option that makes no sense."""


class DataError(RlflowError):
    """A data set, a row or a column is not as declared."""


class EngineError(RlflowError):
    """An engine answered with an error or broke its contract."""


class LedgerError(RlflowError):
    """What a run has done cannot be read from its ledger, or not be written to it."""


class PoolError(RlflowError):
    """A key or a column that the pool does not hold."""


class PoolFull(PoolError):
    """The pool had no room within the timeout."""


class OperatorError(RlflowError):
    """An operator raised in its worker, or changed what it was given."""


class StartRefused(RlflowError):
    """A process of the run says why it cannot start."""


class WaitTimeout(RlflowError):
    """A named wait ran out of time."""


class WorkerDied(RlflowError):
    """A process of the run is gone."""
