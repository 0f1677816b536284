"""RLF510: refused exactly when the numbers do not divide, and each number that is offered would do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabulary import (
    B,
    Embedded,
    Leaves,
    Policy,
    S,
    T,
    Torch,
    TrainRows,
    Trajectories,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    grpo,
    micro_pack,
    pad,
    ppo_clip,
    rebalance,
    shaping,
    shard,
    sync,
)

from rlflow import CheckFailed, Feedback, Served, dims, fresh, operator, pipeline
from rlflow.language.diagnostic import Diagnostic

(K,) = dims("K")


class Branching(Embedded):
    """Each trajectory as often as only the run knows, equally often for all."""

    @operator(per="row", sizes={B: T * K, K: fresh(), S: fresh()})
    def branch(self, policy: Served[Policy], prompts: Trajectories) -> Leaves: ...  # type: ignore[empty-body]


def refused(
    prompts: int, n: int, dp: int, mini_batches: int, multiple: int | None = None, *, dealt: bool = False, branched: bool = False
) -> Diagnostic | None:
    """The one error of a loop with these numbers."""

    @pipeline
    def loop() -> None:
        actor, engine = Torch("actor", dp=dp), Branching("engine")
        policy = Feedback("policy", init=actor.load())
        prompt = dispatch(dataset("train.parquet"), n=n)
        sample = engine.branch(policy.served, prompt) if branched else engine.rollout(policy.served, prompt)
        ready = form_batch(sample, prompts=prompts)
        scores = exact_match(ready.response_text, ready.answer, ready.response_mask).token_level_scores
        whose = {"traj_uid": ready.traj_uid} if isinstance(ready, Leaves) else {}
        advantages = grpo(shaping(scores), ready.response_mask, ready.uid, **whose).advantages
        old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
        rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=advantages)
        rows = pad(rows, multiple=multiple) if multiple else rows
        rows = rebalance(rows, pieces=4 * dp, mini_batches=mini_batches) if dealt else rows
        micro = micro_pack(shard(rows, on=actor, mini_batches=mini_batches), max_tokens=64)
        policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip())), engine))

    try:
        loop()
    except CheckFailed as failed:
        (found,) = (d for d in failed.diagnostics if d.severity == "error")
        return found
    return None


def offered(found: Diagnostic) -> list[tuple[str, int]]:
    """Every `name=number` of its notes and help."""
    text = " ".join([*found.notes, found.help or ""])
    return [(name, int(number)) for name, number in re.findall(r"(\w+)=(\d+)", text)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(2, 9), st.integers(1, 6), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 12)), st.booleans())
def test_what_is_refused_does_not_divide_and_what_is_offered_does(
    prompts: int, n: int, dp: int, mini_batches: int, multiple: int | None, dealt: bool
) -> None:
    rows = -(-prompts * n // (multiple or 1)) * (multiple or 1)
    found = refused(prompts, n, dp, mini_batches, multiple, dealt=dealt)
    assert (found is None) == (rows % (dp * mini_batches) == 0)
    if found is None:
        return
    assert found.code == "RLF510"
    at_the_deal = dealt and rows % mini_batches != 0
    ways = mini_batches if at_the_deal else dp * mini_batches
    assert found.message.startswith(f"{rows} rows do not divide by {ways} (")
    numbers = {"prompts": prompts, "n": n, "dp": dp, "mini_batches": mini_batches, "multiple": multiple}
    assert offered(found)
    for name, number in offered(found):
        changed = numbers | {name: number}
        total = changed["prompts"] * changed["n"]  # type: ignore[operator]
        total = -(-total // (changed["multiple"] or 1)) * (changed["multiple"] or 1)
        assert total % (changed["mini_batches"] * (1 if at_the_deal else changed["dp"])) == 0, (name, number)  # type: ignore[operator]


@pytest.mark.parametrize(("prompts", "dp", "legal"), [(64, 4, True), (64, 6, False), (63, 6, True)])
def test_a_factor_of_an_unknown_number_divides(prompts: int, dp: int, legal: bool) -> None:
    """prompts * 8 * K rows are a multiple of prompts * 8, whatever K is."""
    found = refused(prompts, 8, dp, 1, branched=True)
    assert (found is None) == legal
    if found is not None:
        assert found.message == "nothing says that 512*K rows divide by 6 (dp_size=6)"
        assert found.notes[0] == "64 prompts × 8*K = 512*K; rows come in multiples of lcm(8, 6) = 24, prompts in multiples of 3"
        assert found.help == "`prompts=63` or `prompts=66`, or pad: `pad(rows, multiple=6)`"


def test_numbers_that_one_more_number_would_not_mend() -> None:
    """504 rows padded to 510, for 4 ranks x 5 mini-batches: the multiple of both is named, at the pad."""
    found = refused(63, 8, 4, 5, 10)
    assert found is not None
    assert found.notes == ("rows that are a multiple of 10 need not be one of 20; lcm = 20",)
    assert found.help == "pad to both: `pad(rows, multiple=20)`"


def test_a_pad_covers_what_the_size_does_not() -> None:
    """21 rows padded to a multiple of 4 are 24: that 3 divides 24 too is arithmetic, as the number is known."""
    assert refused(7, 3, 3, 2, 4) is None
