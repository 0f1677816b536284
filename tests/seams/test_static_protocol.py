"""Q, W, C, M: protocols, missing fields, state that lives across steps, what lives how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recorded_engine import RecordedEngine
from refusals import refused, refused_by, written
from start import Start
from vocabulary import (
    KlRows,
    KlTrainRows,
    PolicyForward,
    TokenScores,
    Torch,
    anchor_on_rollout,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
)
from vocabulary import (
    grpo as grpo_of_group,
)

from operators.engines import Embedded
from operators.sync import sync as shipped_sync
from pipelines.grpo import grpo
from rlflow import Loss, State, Worker, absent, operator, pipeline
from rlflow.data.batch import Block, Column
from rlflow.engines.rollout import SyncError, sync_weights
from rlflow.errors import DataError
from rlflow.language.operator import declaration_of

BUCKETS = [{"embed": torch.zeros(2, 2)}, {"lm_head": torch.ones(2)}]


def _synced(engine: RecordedEngine) -> list[str]:
    sync_weights(engine, BUCKETS, version=1)  # type: ignore[arg-type]
    return engine.calls


# --- Q13, W5: the protocol of a weight sync
def test_Q13_a_sync_pauses_first_and_continues_last() -> None:
    """Requests were aborted after the engine had gone on, in the middle of its pause, and it crashed."""
    calls = _synced(RecordedEngine())
    assert (calls[0], calls[-1]) == ("pause(retract)", "continue")
    assert "abort" not in calls  # retract gives up the slots, the requests wait: nothing has to be aborted


@pytest.mark.parametrize("step", ["release", "begin", "update", "end", "resume"])
def test_Q13_an_engine_that_failed_on_the_way_is_not_aborted_either(step: str) -> None:
    """The same after a failure: it is left paused or as it was, and the next attempt takes the same way."""
    engine = RecordedEngine(fails=step)
    with pytest.raises(SyncError):
        _synced(engine)
    engine.calls.clear()
    calls = _synced(engine)
    assert (calls[0], calls[-1]) == ("pause(retract)", "continue")
    assert "abort" not in calls


def test_W5_the_cache_is_given_up_before_the_update_and_is_empty_before_anything_is_sampled() -> None:
    """Prefixes that old weights had computed outlived the update, or the cache was reset in the middle of it and filled again."""
    assert _synced(RecordedEngine()) == [
        "pause(retract)",
        "release(kv_cache)",
        "begin",
        "update",
        "update(flush)",
        "end",
        "resume(kv_cache)",
        "continue",
    ]


@pytest.mark.parametrize("step", ["pause", "abort", "release", "flush_cache", "update_weights", "resume", "continue_generation"])
def test_W5_a_pipeline_has_one_word_for_all_of_it(step: str) -> None:
    """The same: the steps are no operators, so they cannot be written in another order, or one of them be forgotten."""
    assert not hasattr(Embedded, step)
    declared = declaration_of(shipped_sync)
    assert declared is not None
    assert declared.serves == "engine"


# --- Q17: a field that nobody writes
def test_Q17_a_field_that_was_never_written_is_no_field() -> None:
    """A reader asked the store for a column that nobody wrote, and polled for it until its timeout."""

    def loop() -> None:
        s = Start()
        anchor_on_rollout(s.ready.rollout_logprobs)  # type: ignore[attr-defined]

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF001", "s.ready.rollout_logprobs")
    assert found.message == "`Sample` has no field `rollout_logprobs`; did you mean `rollout_log_probs`?"


def test_Q17_a_field_that_this_variant_leaves_out_is_no_field_either() -> None:
    """The same, of a column that another variant of the pipeline writes."""

    def loop() -> None:
        s = Start()
        s.finish(s.rows(anchor_on_rollout(absent("nothing is recorded"))))

    found = refused(loop)
    assert (found.code, found.message) == ("RLF008", "nothing makes `rollout_log_probs`, which `anchor_on_rollout` reads")


def test_Q17_at_run_time_a_missing_column_is_an_error_at_once() -> None:
    """The same in the data path: a block is asked once, and answers with what it has."""
    block = Block({"uid": Column.scalars("i64", [7, 7])})
    with pytest.raises(DataError, match="no column `input_ids`: there are `uid`"):
        block.select(["uid", "input_ids"])


# --- Q19: a condition that reads one of two knobs
class annealed_kl(Loss[PolicyForward, KlRows]):
    """A penalty that goes from one strength to another."""

    first: float
    final: float

    @property
    def active(self) -> bool:
        return self.first > 0 or self.final > 0


def _annealed(first: float, final: float, *, reference_if: bool) -> None:
    s = Start()
    ref = absent("kl is 0")
    if reference_if:
        reference = Torch("reference")
        ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    rows = KlTrainRows(
        input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=s.old(), ref_log_probs=ref, advantages=s.advantages
    )
    micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip(), annealed_kl(first, final))), s.engine))


def test_Q19_a_condition_that_forgets_a_knob_is_refused() -> None:
    """Reference log-probs were computed if the first strength of the penalty was above 0; a run that only ended above 0 had none."""
    found = refused(_annealed, first=0.0, final=0.1, reference_if=0.0 > 0)
    assert (found.code, found.message) == ("RLF008", "nothing makes `ref_log_probs`, which `annealed_kl` reads")
    assert "left out here: kl is 0" in [label.text for label in found.related]


@pytest.mark.parametrize(("first", "final", "needed"), [(0.0, 0.0, False), (0.0, 0.1, True), (0.1, 0.0, True), (0.1, 0.1, True)])
def test_Q19_who_is_read_is_derived_from_the_reader(first: float, final: float, needed: bool) -> None:
    """The same, repaired: no condition is written, the forward of the reference is dropped where no active loss reads it."""
    plan = pipeline(_annealed)(first, final, reference_if=True)
    needed_calls = {node.title for node in plan.graph.nodes if node.id in plan.facts.needed}
    assert ("reference.log_probs" in needed_calls) is needed


# --- M8: what lives how long
def _training_bytes(prompts: int) -> tuple[str, int]:
    """The call at which a trainer holds the most columns, and how many bytes they are, for rows of up to 512 tokens."""
    peak = grpo(prompts=prompts, max_tokens=4096).peak(S=512, Q=64, text=16, b=8 * prompts)["actor"]
    return peak.call, peak.bytes


def test_M8_a_trainer_holds_one_micro_batch_however_large_the_batch() -> None:
    """The whole batch was put on the device, and what the forward made of it was kept to the end of the step: out of memory."""
    # ids and positions i64[8, 512]; a mask, old log-probs, advantages, and log-probs of the forward [8, 511]; is_pad
    micro_batch = 8 * (2 * 8 * 512 + (1 + 4 + 4) * 511 + 1)
    assert _training_bytes(prompts=32) == _training_bytes(prompts=320) == ("actor.train", micro_batch)


def test_M8_training_takes_nothing_but_micro_batches() -> None:
    """The same: a batch that was not cut has no losses to be trained with."""

    def loop() -> None:
        s = Start()
        s.policy.close(sync(s.actor.train(s.policy.move, shard(s.rows(), on=s.actor)), s.engine))  # type: ignore[arg-type]

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF005", "shard(s.rows(), on=s.actor)")
    assert found.message == "`objective` of `actor.train` takes losses on micro-batches, got a `TrainRows`"
    assert found.help == "`micro_pack(..., max_tokens=...).loss(...)`, of rows that `shard` cut"


# --- C8: state that lives across steps
reserved: dict[int, int] = {}
position = 0


def reserving(token_level_scores: TokenScores, *, slots: int) -> TokenScores:
    reserved[slots] = len(reserved)  # a reservation that no checkpoint knows of
    raise NotImplementedError


def in_order(token_level_scores: TokenScores) -> TokenScores:
    global position
    position += 1
    raise NotImplementedError


def counting(start: int) -> Callable[[TokenScores], TokenScores]:
    drawn = start

    def draw(token_level_scores: TokenScores) -> TokenScores:
        nonlocal drawn
        drawn += 1
        raise NotImplementedError

    return draw


@pytest.mark.parametrize(
    ("fn", "keeps"),
    [
        (reserving, "changes the global `reserved`"),
        (in_order, "writes the global `position`"),
        (counting(0), "writes `drawn` of an outer function"),
    ],
    ids=["reservations", "position", "closure"],
)
def test_C8_an_operator_that_keeps_something_says_so(fn: Callable[..., object], keeps: str) -> None:
    """Reservations and an order were kept beside what a checkpoint holds: a resumed run leaked the first and dropped what it restored."""
    found = refused_by(lambda: operator(per="row")(fn))
    assert (found.code, written(found)) == ("RLF013", f"def {fn.__name__}")
    assert found.message == f"`{fn.__name__}` {keeps}, and declares no state"
    assert found.notes == ("what lives across steps is declared: a checkpoint holds what is, and a resumed run begins anew with the rest",)


def test_C8_a_worker_that_keeps_something_says_so() -> None:
    """The same of a worker: its checkpoint holds what its class declares."""

    def sampler() -> None:
        class InOrder(Worker):
            @operator(per="row")
            def draw(self, token_level_scores: TokenScores) -> TokenScores:
                self.reserved.append(token_level_scores)
                return token_level_scores

    found = refused_by(sampler)
    assert (found.code, written(found)) == ("RLF013", "def draw")
    assert found.message == "`InOrder.draw` sets `self.reserved`, and `InOrder` declares no such state"
    assert found.help == 'declare it in the class: `state = (State("reserved", 8),)`, or hand it in and out as fields'


def test_C8_what_is_declared_is_listed_with_what_a_checkpoint_holds() -> None:
    """The same, repaired: the plan lists all that lives across steps, whose it is and whether a checkpoint holds it."""
    draw = operator(per="row", state=(State("position", 8),))(in_order)

    @pipeline
    def loop() -> None:
        s = Start()
        s.finish(s.rows(grpo_of_group(shaping(draw(s.score.token_level_scores)), s.ready.response_mask, s.ready.uid).advantages))

    kept = {(one.owner, one.name): one.in_checkpoint for one in loop().facts.state}
    assert kept["in_order", "position"] is True
    assert ("dataset", "position") not in kept  # the catalogue of these tests declares none
