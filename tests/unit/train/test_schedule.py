from __future__ import annotations

import pytest

from rlflow.engines.train.schedule import Schedule, learning_rate
from rlflow.errors import EngineError


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447, 0, 0]),
    ],
)
def test_rate_by_step(schedule: Schedule, expected: list[float]) -> None:
    rates = [learning_rate(step, lr=1.0, warmup_steps=2, schedule=schedule, decay_steps=4) for step in range(8)]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_no_warm_up_starts_at_the_rate() -> None:
    assert learning_rate(0, lr=3e-4, warmup_steps=0, schedule="constant", decay_steps=0) == 3e-4


def test_decay_needs_its_length() -> None:
    with pytest.raises(EngineError, match="decay_steps > 0"):
        learning_rate(5, lr=1.0, warmup_steps=0, schedule="linear", decay_steps=0)
