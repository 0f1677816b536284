"""What becomes of groups that are too slow for max_lag: real runs of answers of very different lengths, by what they trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from run_cases import Run

UNEVEN = ("--prompts", "2", "--group-size", "2", "--max-lag", "1", "--max-new-tokens", "64", "--eval-every", "1000", "--save-every", "0")


def steps_of(start_run: Callable[..., Run], pipeline: str, *flags: str) -> list[dict[str, Any]]:
    run = start_run(pipeline, *UNEVEN, "--steps", "20", *flags)
    code, _, err = run.end(240)
    assert code == 0, err
    steps = run.steps()
    assert [line["step"] for line in steps] == list(range(1, 21))
    return steps


def tokens(line: dict[str, Any], oldest: int = 10**6) -> int:
    """Sampled tokens of a batch with a gap up to this one."""
    return sum(count for gap, count in line["staleness"].items() if int(gap) <= oldest)


@pytest.mark.parametrize("stale", ["wait", "drop"])
def test_no_token_is_older_than_max_lag(start_run: Callable[..., Run], stale: str) -> None:
    for line in steps_of(start_run, "grpo", "--stale", stale, "--queue", "1"):
        assert tokens(line, 1) == tokens(line) == line["metrics"]["actor.train/tokens"]
        assert line["rows"] == 4


def test_older_tokens_are_masked_and_their_rows_stay(start_run: Callable[..., Run]) -> None:
    steps = steps_of(start_run, "grpo", "--stale", "mask")
    for line in steps:
        assert line["rows"] == 4
        assert 1 <= line["metrics"]["actor.train/rows"] <= 4  # those that have a young token left; no denominator counts the others
        assert line["metrics"]["actor.train/tokens"] == line["metrics"]["mask_stale/unmasked_tokens"] == tokens(line, 1)
        assert line["metrics"]["mask_stale/masked_tokens"] == tokens(line) - tokens(line, 1)
    assert steps[-1]["masked_tokens"] == sum(tokens(line) - tokens(line, 1) for line in steps)


def test_older_tokens_are_trained_where_all_are_weighed(start_run: Callable[..., Run]) -> None:
    for line in steps_of(start_run, "grpo", "--stale", "correct"):
        assert line["metrics"]["actor.train/tokens"] == tokens(line)
