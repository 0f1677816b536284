"""Columns of different row sets in one record, or in one call: told by the operator that parted them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_loops import Scored
from start import Start
from vocabulary import (
    Advantages,
    OldLogProbs,
    TrainRows,
    exact_match,
    form_batch,
    keep_mixed,
    micro_pack,
    pad,
    ppo_clip,
    rebalance,
    shard,
    sync,
)

from rlflow import CheckFailed, Micro, RowsT, Tensor, operator, pipeline

Pair = tuple[Tensor, Tensor]  # advantages before, old log-probs after


@operator(per="row", rows="filter")
def drop_long(rows: RowsT, advantages: Advantages) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="row")
def weighed(advantages: Advantages, old_log_probs: OldLogProbs) -> Advantages: ...  # type: ignore[empty-body]


def parted(change: Callable[[Start, TrainRows], TrainRows]) -> Callable[[Start], Pair]:
    def both(start: Start) -> Pair:
        rows = start.rows()
        return rows.advantages, change(start, rows).old_log_probs

    return both


CHANGES = [
    ("`advantages` did not pass the filter that `old_log_probs` passed", parted(lambda s, rows: drop_long(rows, rows.advantages))),
    ("`advantages` is in another row order than `old_log_probs`", parted(lambda s, rows: rebalance(rows, pieces=4))),
    ("`advantages` lacks the pad rows of `old_log_probs`", parted(lambda s, rows: pad(rows, multiple=6))),
    ("`advantages` covers the whole batch, `old_log_probs` only one DP shard", parted(lambda s, rows: shard(rows, on=s.actor))),
    (
        "`advantages` covers the whole batch, `old_log_probs` only one micro-batch",
        parted(lambda s, rows: micro_pack(shard(rows, on=s.actor), max_tokens=64).rows),
    ),
]


def told(run: Callable[[], Any]) -> list[tuple[str, str]]:
    """Code and message of each error. (The loops are fragments: that they are never closed is no news here.)"""
    try:
        run()
    except CheckFailed as refused:
        return [(d.code, d.message) for d in refused.diagnostics if d.severity == "error" and d.code != "RLF301"]
    return []


@pytest.mark.parametrize(("message", "both"), CHANGES)
def test_in_a_record(message: str, both: Callable[[Start], Pair]) -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        before, after = both(start)
        ready = start.ready
        TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=after, advantages=before)

    assert told(loop) == [("RLF521", f"{message} in `TrainRows`")]


@pytest.mark.parametrize(("message", "both"), CHANGES)
def test_in_an_operator(message: str, both: Callable[[Start], Pair]) -> None:
    @pipeline
    def loop() -> None:
        weighed(*both(Start()))

    assert told(loop) == [("RLF521", f"{message} in `weighed`")]


def test_of_the_stream_and_of_the_batch() -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        exact_match(start.sample.response_text, start.ready.answer, start.ready.response_mask)

    assert told(loop) == [("RLF521", "`response_text` is still about the stream, `answer` about the whole batch in `exact_match`")]


def test_rows_that_were_not_packed_are_not_trained() -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        objective = Micro(rows=shard(start.rows(), on=start.actor)).loss(ppo_clip())
        start.policy.close(sync(start.actor.train(start.policy.move, objective), start.engine))

    with pytest.raises(CheckFailed) as refused:
        loop()
    (found,) = (d for d in refused.value.diagnostics if d.severity == "error")
    assert (found.code, found.message, found.help) == (
        "RLF502",
        "`actor.train` needs packed micro-batches, got one DP shard",
        "put `micro_pack(...)` before it",
    )


def test_a_group_filter_before_the_batch_and_one_after() -> None:
    def loop(late: bool) -> None:
        start = Start()
        of = start.ready if late else start.sample
        scores = exact_match(of.response_text, of.answer, of.response_mask).token_level_scores
        kept = keep_mixed(Scored(input_ids=of.input_ids, response_mask=of.response_mask, token_level_scores=scores, uid=of.uid), scores)
        if not late:
            form_batch(kept, prompts=4)
        start.finish(start.rows())

    assert told(lambda: pipeline(loop)(late=False)) == []
    assert told(lambda: pipeline(loop)(late=True)) == [("RLF503", "`keep_mixed` filters groups after the batch was formed")]
