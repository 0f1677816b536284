"""Libraries that only some pipelines need: extras of the package, asked for where they are used."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import UsageError


def require(module: str, *, extra: str, what: str) -> None:
    """Raise UsageError naming the extra to install, if `module` is not there."""
    if find_spec(module) is None:
        raise UsageError(f"{what} needs the library `{module}`: pip install 'rlflow[{extra}]'")
