"""What stands for a field has no value: every way to get one out of it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from start import Start

from rlflow import CheckFailed, pipeline

USES: dict[str, Callable[[Any], Any]] = {
    "print": lambda field: print(field),
    "str": str,
    "f-string": lambda field: f"{field}",
    "f-string with a format": lambda field: f"{field:.3f}",
    "format": "{}".format,
    "percent": lambda field: "%s" % field,  # noqa: UP031
    "bytes": bytes,
    "np.array": np.array,
    "np.asarray": np.asarray,
    "np.mean": np.mean,
    "np.add": lambda field: np.add(field, 1),
    "array + field": lambda field: np.ones(3) + field,
    "list": list,
    "reversed": reversed,
    "round": round,
    "floor": math.floor,
    "divmod": lambda field: divmod(field, 2),
    "1 % field": lambda field: 1 % field,
    "1 @ field": lambda field: 1 @ field,
    "1 << field": lambda field: 1 << field,
    "+field": lambda field: +field,
    "complex": complex,
    "==": lambda field: field == 1,
    "in": lambda field: 1 in field,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_field_is_no_number_and_no_text(use: Callable[[Any], Any]) -> None:
    @pipeline
    def loop() -> None:
        use(Start().rewards)

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [found.code for found in refused.value.diagnostics] == ["RLF007"]


def test_its_repr_names_it() -> None:
    seen: list[str] = []

    @pipeline
    def loop() -> None:
        start = Start()
        seen.append(repr(start.rewards))
        start.finish(start.rows())

    loop()
    assert seen == ["<field `shaping`>"]
