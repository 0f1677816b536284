"""What a pipeline is refused with, and where: the place of a message is the text that is written there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlflow import CheckFailed, pipeline
from rlflow.language import source
from rlflow.language.diagnostic import Diagnostic


def refused(loop: Callable[..., None], **parameters: Any) -> Diagnostic:
    """The one thing that is wrong with a pipeline: one mistake, one message."""
    return refused_by(lambda: pipeline(loop)(**parameters))


def refused_by(build: Callable[[], object]) -> Diagnostic:
    """The same, of anything that makes a plan."""
    with pytest.raises(CheckFailed) as failed:
        build()
    (only,) = failed.value.diagnostics
    return only


def written(found: Diagnostic) -> str:
    """What stands at the place of a message."""
    return source.text(found.where)


def accepted(loop: Callable[..., None], **parameters: Any) -> bool:
    """Whether it checks clean, without a warning. Raises CheckFailed where it does not."""
    return pipeline(loop)(**parameters).warnings == ()
