"""The running rows as arrays: tokens in, ends found, holes filled."""

from __future__ import annotations

import numpy as np
from rollout_requests import request

from rlflow.engines.rollout.embedded.batch import RunningBatch
from rlflow.engines.rollout.embedded.request import Request


def batch_of(*requests: Request) -> RunningBatch:
    batch = RunningBatch()
    for r in requests:
        batch.add(r)
    return batch


def append(batch: RunningBatch, *tokens: int, first: int = 0) -> list[bool]:
    return batch.append_tokens(first, np.array(tokens), -np.array(tokens, np.float32)).tolist()  # type: ignore[no-any-return]


def test_a_row_ends_at_its_limit_or_at_a_stop_id() -> None:
    batch = batch_of(request("a", max_new_tokens=2), request("b", max_new_tokens=9), request("c", max_new_tokens=9, stop_ids=(2, 7)))
    assert append(batch, 10, 10, 10) == [False, False, False]
    assert append(batch, 10, 7, 7) == [True, False, True]


def test_a_stop_id_before_min_new_tokens_does_not_end() -> None:
    batch = batch_of(request("a", max_new_tokens=9, min_new_tokens=2, stop_ids=(7,)))
    assert append(batch, 7) == [False]
    assert append(batch, 7) == [True]


def test_stop_ids_are_masked_until_min_new_tokens() -> None:
    batch = batch_of(request("a", min_new_tokens=1, stop_ids=(2, 7)), request("b"))
    assert batch.sampling_rows(0).masked_ids == [(0, (2, 7))]
    append(batch, 10, 10)
    assert batch.sampling_rows(0).masked_ids == []


def test_only_new_rows_are_extended_after_a_prefill() -> None:
    batch = batch_of(request("a", [5, 6, 7]))
    append(batch, 10)
    batch.add(request("b", [8]))
    assert append(batch, 11, first=1) == [False]
    assert (batch.output_ids(0), batch.output_ids(1)) == ([10], [11])
    assert batch.sampling_rows(0).step.tolist() == [1, 1]


def test_removal_moves_the_last_rows_into_the_holes() -> None:
    batch = batch_of(*(request(rid, [i + 3], seed=i) for i, rid in enumerate("abcde")))
    append(batch, 10, 11, 12, 13, 14)
    gone, source, target = batch.remove(np.array([True, False, True, False, False]))
    assert [(r.rid, r.output_ids, r.log_probs) for r in gone] == [("a", [10], [-10.0]), ("c", [12], [-12.0])]
    assert (source.tolist(), target.tolist()) == ([3, 4], [0, 2])
    assert [r.rid for r in batch.requests] == ["d", "b", "e"]
    assert [batch.output_ids(i) for i in range(3)] == [[13], [11], [14]]
    assert batch.seed[:3].tolist() == [3, 1, 4]


def test_removal_of_the_last_rows_moves_nothing() -> None:
    batch = batch_of(request("a"), request("b"))
    _, source, target = batch.remove(np.array([False, True]))
    assert (len(source), len(target), [r.rid for r in batch.requests]) == (0, 0, ["a"])


def test_outputs_survive_a_retraction() -> None:
    batch = batch_of(request("a", [5, 6]))
    append(batch, 10)
    append(batch, 11)
    (retracted,), _, _ = batch.remove(np.array([True]))
    batch.add(request("other", [9] * 40, stop_ids=(1, 2, 3)))
    batch.add(retracted)
    append(batch, 12, first=1)
    (back,), _, _ = batch.remove(np.array([False, True]))
    assert (back.output_ids, back.log_probs) == ([10, 11, 12], [-10.0, -11.0, -12.0])


def test_stale_stop_ids_of_a_former_row_are_gone() -> None:
    batch = batch_of(request("a", stop_ids=(2, 7, 9)))
    batch.remove(np.array([True]))
    batch.add(request("b", max_new_tokens=9, stop_ids=(2,)))
    assert append(batch, 9) == [False]
