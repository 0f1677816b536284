"""A library that is not installed is named together with the extra that brings it."""

from __future__ import annotations

import pytest

from rlflow.errors import UsageError
from rlflow.extras import require


def test_a_missing_library_names_its_extra() -> None:
    with pytest.raises(UsageError, match=r"`math_verify_of_tomorrow`: pip install 'rlflow\[rewards\]'"):
        require("math_verify_of_tomorrow", extra="rewards", what="math_reward")


def test_a_library_that_is_there_is_fine() -> None:
    require("msgspec", extra="rewards", what="math_reward")
