"""L and G: loss scale, grouping, filters."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np
import pytest
from refusals import accepted, refused, refused_by, written
from start import Start
from vocabulary import (
    Advantage,
    B,
    Embedded,
    InputIds,
    PolicyForward,
    PpoRows,
    ResponseMask,
    RolloutLogProbs,
    Scores,
    T,
    TokenRewards,
    TokenScores,
    Torch,
    TrainRows,
    TrajectoryUid,
    Uid,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    gae,
    grpo,
    keep_mixed,
    length_penalty,
    micro_pack,
    pad,
    ppo_clip,
    reward,
    rloo,
    shaping,
    shard,
    sync,
)

from rlflow import Feedback, Loss, Plan, Record, Tensor, count, f32, i64, operator, pipeline
from rlflow.data.rowplan import plan_rows

TokenCount: TypeAlias = Annotated[Tensor, i64[B], count("tokens")]


class CountedRows(PpoRows):
    batch_num_tokens: TokenCount


class distillation(Loss[PolicyForward, PpoRows]):
    by: str = "batch_num_tokens"

    @property
    def denominator(self) -> str:  # type: ignore[override]
        return self.by


class divides_itself(Loss[PolicyForward, CountedRows]):
    """Asks for the count as a field."""


def _trained_with(loss: Loss[PolicyForward, PpoRows]) -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(loss)), s.engine))


@pytest.mark.parametrize("by", ["batch_num_tokens", "", "token"])
def test_L3_a_loss_is_divided_by_a_count_that_somebody_makes(by: str) -> None:
    """The token count was looked up in a table that was still empty when the loss ran, so the loss came out eight times as large."""
    found = refused(lambda: _trained_with(distillation(by)))
    assert (found.code, written(found)) == ("RLF013", "micro.loss(loss)")
    assert found.message == f"`distillation` is divided by {by!r}, which nobody counts"
    assert found.help == "a denominator is one of tokens, rows, trajectories, groups, or a number above 0"


def test_L3_a_count_that_a_loss_reads_is_a_field_that_somebody_writes() -> None:
    """The same, with the count handed to the loss: then it is one of its inputs, and a record without it does not feed the loss."""
    found = refused(lambda: _trained_with(divides_itself()))  # type: ignore[arg-type]
    assert (found.code, written(found)) == ("RLF001", "micro.loss(loss)")
    assert found.message.startswith("`TrainRows` has no field `batch_num_tokens`, which `divides_itself` reads")
    assert found.help == "let `TrainRows` inherit from `CountedRows`"


# --- G1: a group of one
ESTIMATORS = {"grpo": grpo, "rloo": rloo}


def _answers_a_prompt(n: int, estimator: str) -> None:
    actor, engine = Torch("actor"), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    prompt = dispatch(dataset("train.parquet"), n=n)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=64)
    score = exact_match(ready.response_text, ready.answer, ready.response_mask)
    advantages = ESTIMATORS[estimator](shaping(score.token_level_scores), ready.response_mask, ready.uid).advantages
    old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
    rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=advantages)
    micro = micro_pack(shard(rows, on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip())), engine))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_G1_a_group_of_one_has_nobody_to_be_compared_with(estimator: str) -> None:
    """One answer a prompt: its mean is itself and its deviation not a number, so the run trained nothing, or NaN, to its end."""
    found = refused(_answers_a_prompt, n=1, estimator=estimator)
    assert found.code == "RLF512"
    assert written(found).startswith("ESTIMATORS[estimator](")
    assert found.message == f"`{estimator}` compares the members of a group, and a group is 1 trajectory"
    assert "every advantage is 0, and nothing trains" in found.notes[0]
    assert accepted(_answers_a_prompt, n=2, estimator=estimator)


# --- G10: mini-batches
def _steps_from_rows(s: Start) -> None:
    s.finish(s.rows(), multiple=len(s.ready.input_ids) // 2)


def _steps_from_shape(s: Start) -> None:
    s.finish(s.rows(), multiple=s.ready.input_ids.shape[0] // 2)


@pytest.mark.parametrize("count", [_steps_from_rows, _steps_from_shape])
def test_G10_the_number_of_rows_is_no_number_of_a_pipeline(count: object) -> None:
    """Mini-batches were cut by rows: prompts that yielded more rows than others made more optimizer steps than were asked for."""
    found = refused(lambda: count(Start(tree=True)))  # type: ignore[operator]
    assert found.code == "RLF007"
    assert written(found).startswith(("len(s.ready.input_ids)", "s.ready.input_ids.shape"))


def test_G10_steps_are_the_mini_batches_asked_for_whatever_the_prompts_yield() -> None:
    """The same: `mini_batches` is the number of steps, and there is no size of one to be counted in rows. 4, 1, 3 and 2 rows a prompt."""
    uid = np.array([0] * 4 + [1] + [2] * 3 + [3] * 2)
    plan = plan_rows(np.full(10, 5), uid, multiple=2, pieces=2, dp=1, mini_batches=2, max_tokens=1000)
    assert len(plan.micros(0)) == 2


# --- G13: filters
class Scored(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    token_level_scores: TokenScores
    uid: Uid


def _filtered_by(which: str) -> None:
    s = Start()
    score = exact_match(s.sample.response_text, s.sample.answer, s.sample.response_mask).token_level_scores
    sampled = Scored(input_ids=s.sample.input_ids, response_mask=s.sample.response_mask, token_level_scores=score, uid=s.sample.uid)
    judged = score if which == "raw" else length_penalty(shaping(score), s.sample.response_mask, limit=100)
    kept = form_batch(keep_mixed(sampled, judged), prompts=64)
    rewards = length_penalty(shaping(kept.token_level_scores), kept.response_mask, limit=100)
    advantages = grpo(rewards, kept.response_mask, kept.uid).advantages
    old = s.actor.log_probs(s.policy.current, kept.input_ids, kept.response_mask)
    s.finish(TrainRows(input_ids=kept.input_ids, response_mask=kept.response_mask, old_log_probs=old, advantages=advantages))


def test_G13_a_filter_reads_what_the_verifier_said() -> None:
    """Groups whose answers were all right passed the filter of mixed groups: their rewards differed by a penalty on length."""
    found = refused(_filtered_by, which="shaped")
    assert (found.code, written(found)) == ("RLF121", "judged")
    assert found.message == "`token_level_scores` of `keep_mixed` is reward(raw), got reward(shaped)"
    assert found.help == "judge on the scores as the verifier gave them: pass `token_level_scores`"


def test_G13_the_penalty_may_be_trained_on() -> None:
    """The same, repaired: the filter judges the raw scores, the estimator the shaped rewards."""
    assert accepted(_filtered_by, which="raw")


# --- G15: fragments
RowReward: TypeAlias = Annotated[Tensor, f32[B], reward("raw")]


@operator(per="row")
def judge(uid: TrajectoryUid) -> Annotated[Tensor, f32[T], reward("raw")]: ...  # type: ignore[empty-body]


@operator(per="row")
def at_the_last_token(row_reward: RowReward, response_mask: ResponseMask) -> TokenScores: ...  # type: ignore[empty-body]


@operator(per="row")
def judge_fragments(fragments: list[list[str]], response_mask: ResponseMask) -> Scores: ...  # type: ignore[empty-body]


def test_G15_a_reward_a_trajectory_is_no_reward_a_fragment() -> None:
    """Trajectories came back as lists of fragments: the filter crashed on them, or each fragment counted as a trajectory."""

    def loop() -> None:
        s = Start(tree=True)
        scores = at_the_last_token(judge(s.prompt.uid), s.ready.response_mask)
        s.finish(s.rows(grpo(shaping(scores), s.ready.response_mask, s.ready.uid).advantages))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF520", "judge(s.prompt.uid)")
    assert found.message == "rows of `judge` and `response_mask` are not the same things in `at_the_last_token`"
    assert found.notes == ("`engine.rollout_tree` makes B2 rows out of 8*P",)


def test_G15_fragments_do_not_weigh_as_trajectories_in_a_baseline() -> None:
    """The same, of a baseline: a trajectory of many fragments pulled the mean of its group towards itself."""

    def loop() -> None:
        s = Start(tree=True)
        s.finish(s.rows(grpo(s.rewards, s.ready.response_mask, s.ready.uid).advantages))

    found = refused(loop)
    assert (found.code, found.message) == ("RLF513", "`grpo` compares rows, and a trajectory may have several")
    assert found.help == "tell it whose row is whose: `traj_uid=...`"


def test_G15_lists_of_lists_are_no_field() -> None:
    """The same: fragments are rows of their own; a group that holds lists of them has no type."""

    def loop() -> None:
        s = Start(tree=True)
        score = judge_fragments(s.ready.response_text, s.ready.response_mask)  # type: ignore[arg-type]
        s.finish(s.rows(grpo(shaping(score.token_level_scores), s.ready.response_mask, s.ready.uid).advantages))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF002", "s.ready.response_text")
    assert found.message == "parameter `fragments` of `judge_fragments` has no field type"


# --- G22: new estimators and losses
class DecoupledRows(PpoRows):
    rollout_log_probs: RolloutLogProbs


class decoupled_clip(Loss[PolicyForward, DecoupledRows]):
    """Reads a field more than the loss that it takes the place of."""

    @property
    def corrects(self) -> tuple[str, ...]:
        return ("version", "engine")


@operator(per="group")
def sorted_by_length(  # type: ignore[empty-body]
    token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, quantile: float
) -> Advantage: ...


def _plan(loss: Loss[PolicyForward, PpoRows] | None = None) -> Plan:
    @pipeline
    def loop() -> None:
        _trained_with(loss or ppo_clip())

    return loop()


def test_G22_a_new_estimator_says_what_it_lacks_before_the_launch() -> None:
    """Estimators and losses were called with one fixed list of arguments: a new one died of a missing or unexpected one, in a worker."""
    found = refused_by(lambda: _plan().replace("grpo", gae))
    assert (found.code, found.message) == ("RLF009", "`gae` cannot replace `grpo`: nothing gives its `values`")
    gives = "the call gives `token_level_rewards`, `response_mask`, `uid`"
    assert found.notes == (gives, "no earlier field on the same rows is called `values`")
    found = refused_by(lambda: _plan().replace("grpo", sorted_by_length))
    assert (found.message, found.notes) == ("`sorted_by_length` cannot replace `grpo`: nothing gives its `quantile`", (gives,))


def test_G22_a_new_loss_says_which_field_it_lacks_before_the_launch() -> None:
    """The same, of a loss that reads what the old one did not."""
    found = refused_by(lambda: _plan(decoupled_clip()))  # type: ignore[arg-type]
    assert (found.code, written(found)) == ("RLF001", "micro.loss(loss)")
    assert found.message == "`TrainRows` has no field `rollout_log_probs`, which `decoupled_clip` reads; did you mean `old_log_probs`?"
    assert found.help == "let `TrainRows` inherit from `DecoupledRows`"


def test_G22_an_argument_that_an_estimator_does_not_take_is_told_with_those_it_takes() -> None:
    """The same, of an unexpected argument."""

    def loop() -> None:
        s = Start()
        s.finish(s.rows(grpo(s.rewards, s.ready.response_mask, s.ready.uid, index=s.ready.uid).advantages))  # type: ignore[call-arg]

    found = refused(loop)
    assert (found.code, found.message) == ("RLF004", "got an unexpected keyword argument 'index' in the call of `grpo`")
    assert found.help == "`grpo(token_level_rewards, response_mask, uid, traj_uid=None)`"


def test_G22_an_estimator_that_needs_less_is_given_less() -> None:
    """The same, repaired: a replacement is given what it names."""
    assert _plan().replace("grpo", rloo).warnings == ()
