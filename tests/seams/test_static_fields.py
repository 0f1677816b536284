"""S: slices, masks, the alignment of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import numpy as np
import pytest
from refusals import accepted, refused, written
from start import Start
from vocabulary import (
    Advantages,
    B,
    InputIds,
    ResponseMask,
    RolloutLogProbs,
    S,
    TokenRewards,
    TrainRows,
    anchor_on_rollout,
    log_prob,
    mask,
    micro_pack,
    pad,
    ppo_clip,
    rebalance,
    shard,
    sync,
)

from rlflow import Tensor, dims, f32, flag, i32, operator, roles
from rlflow.data.batch import Block, Column

N, L, K = dims("N L K")  # response tokens alone; layers; experts a token
R = S - 1


# --- S1: slices of another layout
ResponseLogProbs: TypeAlias = Annotated[Tensor, f32[B, N], log_prob("served")]


@operator(per="row", sizes={N: N})
def last_tokens(rollout_log_probs: RolloutLogProbs, *, n: Annotated[int, N]) -> ResponseLogProbs: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    "slice_of",
    [lambda x: x[:, :5], lambda x: x[:, -5:], lambda x: x.narrow(1, 0, 5), lambda x: x.flip(-1)],
    ids=["first", "last", "narrow", "flip"],
)
def test_S1_a_field_is_not_sliced_where_nothing_knows_its_layout(slice_of: Callable[[Tensor], Tensor]) -> None:
    """Rows became right-aligned, the slice of their first n positions stayed: prompt and padding were trained as the response."""
    found = refused(lambda: slice_of(Start().ready.rollout_log_probs))
    assert (found.code, found.help) == ("RLF007", "a field has no value while the graph is built; write an operator for it")
    assert "rollout_log_probs" in found.message


def test_S1_a_slice_has_a_length_of_its_own_and_fits_no_field_of_whole_rows() -> None:
    """The same, sliced inside an operator: what it yields is n long and not R, so it meets no mask and no advantages."""

    def loop() -> None:
        s = Start()
        old = anchor_on_rollout(last_tokens(s.ready.rollout_log_probs, n=5))
        s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF103", "old")
    assert found.message == "axis 1 of `old_log_probs` in `TrainRows` must be S - 1, got 5"


# --- S5: which mask
AttentionMask: TypeAlias = Annotated[Tensor, flag[B, S], mask("attention")]
NextTokenAttention: TypeAlias = Annotated[Tensor, flag[B, R], mask("attention")]


@operator(per="row")
def attention_mask(input_ids: InputIds) -> AttentionMask: ...  # type: ignore[empty-body]


@operator(per="row")
def attention_of_next(input_ids: InputIds) -> NextTokenAttention: ...  # type: ignore[empty-body]


def _trained_under(mask_of: Callable[[Start], Tensor]) -> None:
    s = Start()
    given = mask_of(s)
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=given, old_log_probs=s.old(), advantages=s.advantages))


@pytest.mark.parametrize("of", [attention_mask, attention_of_next])
def test_S5_an_attention_mask_is_no_response_mask(of: Callable[[Tensor], Tensor]) -> None:
    """A worker was not sent the loss mask, made one of the attention mask, and trained what tools had said."""
    found = refused(lambda: _trained_under(lambda s: of(s.ready.input_ids)))
    assert (found.code, written(found)) == ("RLF121", "given")
    assert found.message == "`response_mask` of `TrainRows` is mask(response), got mask(attention)"
    assert found.help == "it is 1 on prompts and on what tools and users say, which would then be trained: pass `response_mask`"


def test_S5_a_record_without_the_mask_does_not_feed_the_loss() -> None:
    """The same: the list of columns is the record that the loss names, and a record that lacks one cannot be put together."""

    def loop() -> None:
        s = Start()
        s.finish(TrainRows(input_ids=s.ready.input_ids, old_log_probs=s.old(), advantages=s.advantages))  # type: ignore[call-arg]

    found = refused(loop)
    assert (found.code, found.message) == ("RLF004", "`TrainRows` is put together without `response_mask`")


# --- S8: which axis is ragged
(route,) = roles("route")
Routes: TypeAlias = Annotated[Tensor, i32[B, R, L, K], route]


@operator(per="row", sizes={L: L, K: K})
def routes_of(  # type: ignore[empty-body]
    input_ids: InputIds, *, layers: Annotated[int, L], experts: Annotated[int, K]
) -> Annotated[Tensor, i32[B, L, R, K], route]: ...


@operator(per="row", sink=True)
def replay(routes: Routes, input_ids: InputIds, response_mask: ResponseMask) -> None: ...


def test_S8_axes_have_names_so_an_exchanged_one_is_refused() -> None:
    """Rows of equal length made a batch look rectangular, and the ragged axis was guessed anew: tokens and layers changed places."""

    def loop() -> None:
        s = Start()
        replay(routes_of(s.ready.input_ids, layers=4, experts=2), s.ready.input_ids, s.ready.response_mask)
        s.finish(s.rows())

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF103", "routes_of(s.ready.input_ids, layers=4, experts=2)")
    assert found.message == "axis 1 of `routes` in `replay` must be S - 1, got 4"


def test_S8_rows_of_equal_length_stay_ragged() -> None:
    """The same, at run time: which axis is ragged is said when a column is made, and survives any choice of rows."""
    rows = [np.full((2, 3), row) for row in range(4)]  # two fixed entries a row, three tokens each: all alike
    block = Block({"position_ids": Column.ragged("i64", rows, axis=2)})
    for part in (block.select(["position_ids"]), block.take([2, 0]), block.take([0, 1, 2, 3])):
        column = part["position_ids"]
        assert column.lengths().tolist() == [3] * part.rows
        assert column.padded().shape == (part.rows, 2, 3)
        assert column.padded(width=5).shape == (part.rows, 2, 5)


# --- S17: whole batch and shard
@operator(per="row")
def weigh(advantages: Advantages, token_level_rewards: TokenRewards) -> Advantages: ...  # type: ignore[empty-body]


def test_S17_rewards_of_the_whole_batch_do_not_pair_with_the_rows_of_a_rank() -> None:
    """Rewards travelled as one list of the whole batch beside columns cut for a rank: sample i was trained on the reward of sample j."""

    def loop() -> None:
        s = Start()
        cut = shard(s.rows(), on=s.actor)
        weighed = weigh(cut.advantages, s.rewards)
        rows = TrainRows(input_ids=cut.input_ids, response_mask=cut.response_mask, old_log_probs=cut.old_log_probs, advantages=weighed)
        s.policy.close(sync(s.actor.train(s.policy.move, micro_pack(rows, max_tokens=4096).loss(ppo_clip())), s.engine))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF521", "s.rewards")
    assert found.message == "`shaping` covers the whole batch, `advantages` only one DP shard in `weigh`"
    assert found.help == "put `shaping` in the record that `shard` cuts, and read it from its result"


def test_S17_rewards_in_the_old_order_do_not_pair_with_reordered_rows() -> None:
    """The same before the cut: a partition of as many rows in another order crashes nothing."""

    def loop() -> None:
        s = Start()
        balanced = rebalance(s.rows(), pieces=8)
        weighed = weigh(balanced.advantages, s.rewards)
        rows = TrainRows(
            input_ids=balanced.input_ids,
            response_mask=balanced.response_mask,
            old_log_probs=balanced.old_log_probs,
            advantages=weighed,
        )
        micro = micro_pack(shard(rows, on=s.actor), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF521", "s.rewards")
    assert found.notes == ("`rebalance` reordered the rows; sizes agree, so nothing would have crashed",)


# --- S19: records of routing
@operator(per="row", sizes={L: L, K: K})
def recorded_routes(  # type: ignore[empty-body]
    input_ids: InputIds, *, layers: Annotated[int, L], experts: Annotated[int, K]
) -> Annotated[Tensor, i32[B, S, L, K], route]: ...


def test_S19_a_routing_record_has_no_entry_for_the_last_token() -> None:
    """The last token was never routed; its place in the record held a 0, which is the number of an expert, and that one was replayed."""

    def loop() -> None:
        s = Start()
        replay(recorded_routes(s.ready.input_ids, layers=4, experts=2), s.ready.input_ids, s.ready.response_mask)
        s.finish(s.rows())

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF103", "recorded_routes(s.ready.input_ids, layers=4, experts=2)")
    assert found.message == "axis 1 of `routes` in `replay` must be S - 1, got S"
    assert found.notes == ("`recorded_routes` is 1 longer than it should be; a next-token field has R = S - 1 positions",)


class RoutedRows(TrainRows):
    routes: Routes


@operator(per="row", sizes={L: L, K: K})
def routes_of_next(input_ids: InputIds, *, layers: Annotated[int, L], experts: Annotated[int, K]) -> Routes: ...  # type: ignore[empty-body]


@operator(per="batch", sink=True)
def load_of_experts(routes: Routes) -> None: ...


@operator(per="batch", sink=True)
def load_under_mask(routes: Routes, response_mask: ResponseMask) -> None: ...


def _loads(masked: bool) -> None:
    s = Start()
    routes = routes_of_next(s.ready.input_ids, layers=4, experts=2)
    rows = pad(RoutedRows(**vars(s.rows()), routes=routes), multiple=6)
    if masked:
        load_under_mask(rows.routes, rows.response_mask)
    else:
        load_of_experts(rows.routes)
    micro = micro_pack(shard(rows, on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


def test_S19_pad_rows_are_no_load_of_an_expert() -> None:
    """The same of pad rows: their zeros counted as tokens of expert 0 in the statistics of the batch."""
    found = refused(_loads, masked=False)
    assert (found.code, written(found)) == ("RLF524", "rows.routes")
    assert found.message == "`load_of_experts` counts pad rows: none of its arguments tells them apart"
    assert accepted(_loads, masked=True)
