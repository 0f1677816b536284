"""D: union, divisibility, padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import numpy as np
import pytest
from refusals import accepted, refused, written
from small_loops import penalised
from start import Start
from vocabulary import (
    KlTrainRows,
    PolicyForward,
    RolloutLogProbs,
    Sample,
    Scores,
    Torch,
    TrainRows,
    imitate,
    kl_penalty,
    micro_pack,
    pad,
    ppo_clip,
    rebalance,
    shard,
    sync,
    truncated_importance,
)

from rlflow import Feedback, Loss, RowsT, absent, count, operator, pipeline
from rlflow.data.rowplan import pack_index


# --- D1: equally many micro-batches
def test_D1_micro_batches_are_cut_of_a_shard_by_one_plan_for_all_ranks() -> None:
    """Each rank packed its own rows under a budget of tokens, got another number of micro-batches than its neighbour, and all hung."""

    def loop() -> None:
        s = Start()
        micro = micro_pack(pad(s.rows(), multiple=2), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF502", "pad(s.rows(), multiple=2)")
    assert found.message == "`micro_pack` needs rows of a shard, got the whole batch"
    assert found.help == "put `shard(...)` before it"


def test_D1_rows_of_another_worker_s_ranks_are_not_trained() -> None:
    """The same: cut for four ranks of one worker, handed to the two of another, half of the ranks would have no micro-batch at all."""

    def loop() -> None:
        s, wider = Start(dp=2), Torch("wider", dp=4)
        micro = micro_pack(shard(s.rows(), on=wider), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF504", "micro.loss(ppo_clip())")
    assert found.message == "`actor.train` is given rows that were cut for `wider`"
    assert found.help == "cut the whole batch once more: `shard(s.rows(), on=s.actor)`"


def test_D1_the_plan_knows_the_lengths_of_all_ranks() -> None:
    """The same, at run time: rows of 100 tokens need one micro-batch of 256, rows of 300 two; both ranks run two."""
    short, long = [np.array([100, 100])], [np.array([300, 300])]
    assert [len(rank[0]) for rank in pack_index([short, long], max_tokens=256)] == [2, 2]


# --- D2, D3: rows that do not divide
def _on_ranks(dp: int, prompts: int, tree: bool = False) -> None:
    s = Start(dp=dp, prompts=prompts, tree=tree)
    micro = micro_pack(shard(s.rows(), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


def test_D2_rows_over_ranks_are_refused_with_the_numbers_that_divide() -> None:
    """ "Only support equal chunk": 16 rows met 32 ranks after the rollout of the first batch, an hour into the run."""
    found = refused(_on_ranks, dp=32, prompts=2)
    assert (found.code, found.message) == ("RLF510", "16 rows do not divide by 32 (dp_size=32)")
    assert written(found) == "shard(s.rows(), on=s.actor)"
    assert found.notes == (
        "2 prompts × 8 = 16; rows come in multiples of lcm(8, 32) = 32, prompts in multiples of 4",
        "with 2 prompts these alone would do: `n=16`, `dp=16`",
    )
    assert found.help == "`prompts=4`, or pad to 32: `pad(rows, multiple=32)`"


def test_D2_the_number_that_was_advised_divides() -> None:
    """The same, repaired as the message says."""
    assert accepted(_on_ranks, dp=32, prompts=4)


def test_D3_a_number_of_rows_that_only_the_run_knows_is_refused_too() -> None:
    """Nothing checked that rows divide by ranks: one rank had a row more, and the others waited for it without a word."""
    found = refused(_on_ranks, dp=2, prompts=64, tree=True)
    assert (found.code, found.message) == ("RLF510", "nothing says that B2 rows divide by 2 (dp_size=2)")
    assert found.notes == ("only the run knows how many rows there are",)
    assert found.help == "pad first: `pad(rows, multiple=2)`"


# --- D5: prompts, trajectories, rows and ranks
Prompts: TypeAlias = Annotated[int, count("prompts")]
GroupSize: TypeAlias = Annotated[int, count("trajectories a prompt")]
Rows: TypeAlias = Annotated[int, count("rows")]


def _balanced(over: str) -> None:
    twin = Torch("twin", dp=2, tp=4)
    s = Start()
    rows = rebalance(pad(s.rows(), multiple=2), pieces=4 * getattr(twin, over))
    other = Feedback("other", init=twin.load())
    other.close(twin.train(other.move, micro_pack(shard(rows, on=twin), max_tokens=4096).loss(imitate())))
    s.finish(s.rows())


def test_D5_rows_are_balanced_over_data_parallel_ranks() -> None:
    """Rows were balanced over all ranks of a trainer, tensor-parallel ones too, which hold the same rows: slices of dp ranks were not."""
    found = refused(_balanced, over="world_size")
    assert (found.code, written(found)) == ("RLF016", "4 * getattr(twin, over)")
    assert found.message == "`pieces` of `rebalance` counts ranks, got devices"
    assert accepted(_balanced, over="dp_size")


def test_D5_a_batch_is_asked_for_in_prompts() -> None:
    """The same of answers a prompt: a size in trajectories stood where one in prompts was meant, and n was multiplied in twice."""

    def loop(prompts: Prompts = 64, group_size: GroupSize = 8) -> None:
        s = Start(prompts=prompts * group_size)
        s.finish(s.rows())

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF016", "self.prompts")
    assert found.message == "`prompts` of `form_batch` counts prompts, got trajectories"
    assert found.help == "divide the trajectories by the trajectories a prompt"


def test_D5_rows_are_not_divided_by_prompts() -> None:
    """The same where numbers are normalised: how many rows a prompt yields is not known before the run."""

    def loop(prompts: Prompts = 64, rows: Rows = 512) -> None:
        s = Start(prompts=prompts)
        s.finish(s.rows(), multiple=rows // prompts)

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF016", "rows // prompts")
    assert found.message == "rows divided by prompts: nothing counts that"


# --- D7: a field has one writer
@operator(per="row")
def whole_batch_back(rows: RowsT, *, clip: float) -> RowsT: ...  # type: ignore[empty-body]


def _merged(s: Start) -> object:
    return s.ready | s.score  # type: ignore[operator]


def _united(s: Start) -> object:
    return s.ready.union(s.score)  # type: ignore[attr-defined]


def _rewritten(s: Start) -> None:
    s.ready.rollout_log_probs = s.advantages  # type: ignore[misc]


def test_D7_a_worker_returns_what_it_made_and_nothing_else() -> None:
    """A worker handed the whole batch back, with one key changed on the way; merging it into the batch failed, or kept the wrong one."""

    def loop() -> None:
        s = Start()
        s.finish(whole_batch_back(s.rows(), clip=5.0))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF013", "whole_batch_back(s.rows(), clip=5.0)")
    assert found.message == '`whole_batch_back` hands back all of `rows`, fields of others included, and has rows="keep"'


@pytest.mark.parametrize(
    ("union", "code", "message"),
    [
        (_merged, "RLF007", "a pipeline cannot merge `Sample` and `Scores`"),
        (_united, "RLF001", "`Sample` has no field `union`"),
        (_rewritten, "RLF201", "`rollout_log_probs` of a `Sample` has a writer already"),
    ],
)
def test_D7_there_is_no_union_that_could_overwrite(union: Callable[[Start], object], code: str, message: str) -> None:
    """The same, on the side of the reader: batches are not merged, and a field is not written twice."""
    found = refused(lambda: union(Start()))
    assert (found.code, found.message) == (code, message)


def test_D7_two_records_with_one_field_are_not_put_together_by_name() -> None:
    """The same, with Python's own means: one keyword has one value."""

    class Both(Sample, Scores): ...

    @pipeline
    def loop() -> None:
        s = Start()
        Both(**vars(s.ready), **vars(s.score), response_mask=s.ready.response_mask)

    with pytest.raises(TypeError, match="multiple values for keyword argument 'response_mask'"):
        loop()


@pytest.mark.parametrize(
    ("method", "help"),
    [
        ("union", "records are not merged: put one together, field by field"),
        ("select", "a record is handed on as it is: only what somebody reads is sent"),
        ("keys", "its fields are attributes, and its class says which there are"),
    ],
)
def test_D7_the_methods_of_other_batches_are_answered(method: str, help: str) -> None:
    """The same, for whoever is used to them."""
    found = refused(lambda: getattr(Start().ready, method))
    assert (found.code, found.help) == ("RLF001", help)


# --- D12: pad rows have every field
class DecoupledRows(TrainRows):
    rollout_log_probs: RolloutLogProbs


class decoupled_clip(Loss[PolicyForward, DecoupledRows]):
    """Reads a field that only some recipes have."""

    @property
    def corrects(self) -> tuple[str, ...]:
        return ("version", "engine")


def test_D12_a_field_that_was_not_padded_does_not_meet_rows_that_were() -> None:
    """A batch of pad rows was written by hand without the log-probs of the rollout, and the loss of one recipe read them."""

    def loop() -> None:
        s = Start()
        padded = pad(s.rows(), multiple=6)
        rows = DecoupledRows(**vars(padded), rollout_log_probs=s.ready.rollout_log_probs)
        micro = micro_pack(shard(rows, on=s.actor), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(decoupled_clip())), s.engine))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF521", "s.ready.rollout_log_probs")
    assert found.message == "`rollout_log_probs` lacks the pad rows of `old_log_probs` in `DecoupledRows`"
    assert found.help == "put `rollout_log_probs` in the record that `pad` pads, and read it from its result"


def test_D12_pad_makes_rows_of_whatever_the_record_holds() -> None:
    """The same, repaired: pad is written for any record, so no list of its fields is kept that could lack one."""

    @pipeline
    def loop() -> None:
        s = Start()
        rows = DecoupledRows(**vars(s.rows()), rollout_log_probs=s.ready.rollout_log_probs)
        micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(decoupled_clip())), s.engine))

    plan = loop()
    (padding,) = (node for node in plan.graph.nodes if node.rows == "pad")
    made = [plan.graph.fields[out] for out in padding.outs]
    assert {field.name for field in made} == {"input_ids", "response_mask", "old_log_probs", "advantages", "rollout_log_probs"}
    assert {plan.facts.rowsets[plan.facts.rows[field.id]].padded for field in made} == {True}


# --- D20: what is in a batch
def test_D20_a_batch_is_not_asked_what_it_holds() -> None:
    """`"key" in batch` was answered wrongly by a version of the container, so a field that was there was computed or skipped at random."""

    def loop() -> None:
        s = Start(max_lag=1)
        weighed = s.advantages
        if "rollout_log_probs" in s.ready:  # type: ignore[operator]
            weighed = truncated_importance(weighed, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)
        s.finish(s.rows(weighed))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF006", '"rollout_log_probs" in s.ready')
    assert found.message == "a pipeline cannot ask a `Sample` which fields it holds"
    assert "`rollout_log_probs` is one of them" in found.notes[0]


def test_D20_a_field_is_not_looked_up_by_a_string() -> None:
    """The same: a key that is misspelt in a string is found at run time, an attribute before it."""
    found = refused(lambda: Start().ready["rollout_logprobs"])  # type: ignore[index]
    assert (found.code, found.message) == ("RLF001", "`Sample` has no item 'rollout_logprobs'; did you mean `rollout_log_probs`?")


# --- D22: flags
def _flags(old: bool, advantage: bool, reference: bool) -> None:
    """Three optional hops; whoever reads their fields is always on."""
    s = Start()
    old_log_probs = s.old() if old else absent("skip_old is set")
    advantages = s.advantages if advantage else absent("no estimator is chosen")
    ref = absent("no reference is loaded")
    if reference:
        frozen = Torch("reference")
        ref = frozen.log_probs(frozen.load(), s.ready.input_ids, s.ready.response_mask)
    rows = KlTrainRows(
        input_ids=s.ready.input_ids,
        response_mask=s.ready.response_mask,
        old_log_probs=old_log_probs,
        ref_log_probs=ref,
        advantages=advantages,
    )
    micro = micro_pack(shard(rows, on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip(), kl_penalty(0.1))), s.engine))


@pytest.mark.parametrize(
    ("off", "field", "reader", "why"),
    [
        ("old", "old_log_probs", "ppo_clip", "skip_old is set"),
        ("advantage", "advantages", "ppo_clip", "no estimator is chosen"),
        ("reference", "ref_log_probs", "kl_penalty", "no reference is loaded"),
    ],
)
def test_D22_a_flag_that_switches_a_producer_off_is_named_with_the_reader_that_is_on(off: str, field: str, reader: str, why: str) -> None:
    """KeyError: 'truncated', 'response_mask', 'advantages': a flag was flipped, and a reader was on whose producer was not."""
    flags = dict.fromkeys(("old", "advantage", "reference"), True)
    assert accepted(_flags, **flags)
    found = refused(_flags, **(flags | {off: False}))
    assert (found.code, found.message) == ("RLF008", f"nothing makes `{field}`, which `{reader}` reads")
    assert written(found) == "micro.loss(ppo_clip(), kl_penalty(0.1))"
    assert f"left out here: {why}" in [label.text for label in found.related]


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("dp", [1, 2])
def test_D22_no_flag_of_a_pipeline_that_is_right_is_refused(kl: float, dp: int) -> None:
    """The same, of flags that decide what is read and not what is made."""
    assert penalised(kl=kl, dp=dp).warnings == ()
