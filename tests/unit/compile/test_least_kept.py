"""A filter that declares what it leaves of a group: how many rows there are then, and who may be given them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vocabulary import (
    Answer,
    Embedded,
    InputIds,
    ResponseMask,
    ResponseText,
    Torch,
    TrainRows,
    TrajUid,
    Uid,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    grpo,
    keep_ended,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
)

from rlflow import Plan, Record, RowsT, operator, pipeline
from rlflow.compile.facts import RowSet
from rlflow.language.diagnostic import CheckFailed
from rlflow.language.feedback import Feedback
from rlflow.run.graph import GraphView


@operator(per="group", rows="filter", least_kept=1)
def keep_one(rows: RowsT, response_mask: ResponseMask) -> RowsT: ...  # type: ignore[empty-body]


class Numbered(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    response_text: ResponseText
    answer: Answer
    uid: Uid
    traj_uid: TrajUid


@operator(per="row")
def numbered(uid: Uid) -> TrajUid: ...  # type: ignore[empty-body]


def loop(*keeps: Callable[..., Any], padded: bool = True, n: int = 8) -> Plan:
    """keeps: filters, one after the other."""
    @pipeline
    def of_parts() -> None:
        actor, engine = Torch("actor", dp=2), Embedded("engine")
        policy = Feedback("policy", init=actor.load())
        sample = engine.rollout(policy.served, dispatch(dataset("train.parquet"), n=n))
        left = Numbered(
            input_ids=sample.input_ids, response_mask=sample.response_mask, response_text=sample.response_text, answer=sample.answer,
            uid=sample.uid, traj_uid=numbered(sample.uid),
        )  # fmt: skip
        for keep in keeps:
            left = keep(left, left.response_mask)
        ready = form_batch(left, prompts=64)
        score = exact_match(ready.response_text, ready.answer, ready.response_mask)
        adv = grpo(shaping(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
        old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
        rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=adv.advantages)
        micro = micro_pack(shard(pad(rows, multiple=2) if padded else rows, on=actor), max_tokens=4096)
        policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip())), engine))

    return of_parts()


def rows(plan: Plan, call: str) -> RowSet:
    out = next(node for node in plan.graph.nodes if node.name == call).outs[0]
    found = plan.facts.rows_of(out)
    assert found is not None
    return found


def codes(build: Callable[[], object]) -> list[str]:
    with pytest.raises(CheckFailed) as refused:
        build()
    return [found.code for found in refused.value.diagnostics]


def test_rows_of_a_part_of_a_group_are_as_many_as_only_the_run_knows_and_bounded() -> None:
    plan = loop(keep_ended)
    left, formed = rows(plan, "keep_ended"), rows(plan, "form_batch")
    assert (left.whole, left.group, left.size.number) == (True, 2, None)
    assert (formed.size.number, str(formed.at_most), formed.group) == (None, "512", 2)


def test_they_are_padded_before_they_are_cut() -> None:
    assert codes(lambda: loop(keep_ended, padded=False)) == ["RLF510"]


def test_an_estimator_that_compares_needs_as_many_as_the_filter_leaves() -> None:
    assert codes(lambda: loop(keep_one)) == ["RLF512"]


def test_the_last_filter_that_takes_groups_apart_says_how_much_is_left() -> None:
    plan = loop(keep_one, keep_ended)
    assert rows(plan, "form_batch").group == 2
    assert GraphView(plan).least_left == 2
    assert codes(lambda: loop(keep_ended, keep_one)) == ["RLF512"]


def test_a_filter_that_leaves_more_than_a_group_has_is_refused() -> None:
    assert codes(lambda: loop(keep_ended, n=1)) == ["RLF512"]


def test_the_run_is_told_whose_rows_are_left() -> None:
    plan = loop(keep_ended)
    (node,) = [node for node in plan.graph.nodes if node.name == "keep_ended"]
    assert {use.param for use in node.uses if use.read} == {"rows.traj_uid", "response_mask"}


@pytest.mark.parametrize(("per", "how", "least"), [("row", "filter", 2), ("group", "keep", 2), ("group", "filter", -1)])
def test_only_a_filter_of_groups_takes_them_apart(per: Any, how: Any, least: int) -> None:
    with pytest.raises(CheckFailed, match=f"has least_kept={least}"):

        @operator(per=per, rows=how, least_kept=least)
        def parts(rows: RowsT, response_mask: ResponseMask) -> RowsT: ...  # type: ignore[empty-body]
