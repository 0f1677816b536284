from __future__ import annotations

import torch

from operators.fields import Policy
from operators.stale import mask_stale
from rlflow import Current
from rlflow.measure import collected

VERSIONS = torch.tensor([[3, 3, -1, 6, 7], [4, 5, 5, -1, -1]], dtype=torch.int32)
MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def at(version: int, max_lag: int) -> Current[Policy]:
    return Current("policy", "current", version, max_lag=max_lag)


def test_tokens_of_weights_older_than_max_lag_are_hidden() -> None:
    assert mask_stale(at(7, 2), MASK, VERSIONS).int().tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]]


def test_a_row_may_have_nothing_left() -> None:
    assert mask_stale(at(7, 1), MASK, VERSIONS).int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]


def test_what_the_policy_did_not_say_stays_hidden_at_version_0() -> None:
    """-1 is no version: at version 0 with max_lag=1 it would pass the bound."""
    assert torch.equal(mask_stale(at(0, 1), MASK, VERSIONS), MASK)


def test_it_says_how_many_and_changes_nothing_it_was_given() -> None:
    collected()
    mask_stale(at(7, 2), MASK, VERSIONS)
    assert collected() == {"masked_tokens": 3.0, "unmasked_tokens": 4.0}
    assert MASK.sum() == 7
