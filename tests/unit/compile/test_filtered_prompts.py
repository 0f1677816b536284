"""A filter of prompts, before they are dispatched: a row is a whole group then, so the numbers behind it are known."""

from __future__ import annotations

import pytest
from vocabulary import (
    Embedded,
    PromptAnswer,
    Torch,
    TrainRows,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    grpo,
    micro_pack,
    ppo_clip,
    shaping,
    shard,
    sync,
)

from rlflow import CheckFailed, Feedback, RowsT, operator, pipeline


@operator(per="row", rows="filter")
def drop_easy(rows: RowsT, answer: PromptAnswer) -> RowsT: ...  # type: ignore[empty-body]


@pipeline
def loop(prompts: int, group_size: int, dp: int) -> None:
    actor, engine = Torch("actor", dp=dp), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    questions = dataset("train.parquet")
    hard = drop_easy(questions, questions.answer)
    ready = form_batch(engine.rollout(policy.served, dispatch(hard, n=group_size)), prompts=prompts)
    score = exact_match(ready.response_text, ready.answer, ready.response_mask)
    old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
    advantages = grpo(shaping(score.token_level_scores), ready.response_mask, ready.uid).advantages
    rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=advantages)
    trained = actor.train(policy.move, micro_pack(shard(rows, on=actor), max_tokens=64).loss(ppo_clip()))
    policy.close(sync(trained, engine))


def test_a_batch_of_filtered_prompts_has_a_known_number_of_rows() -> None:
    assert loop(prompts=6, group_size=4, dp=3).warnings == ()


def test_and_is_refused_when_that_number_does_not_divide() -> None:
    with pytest.raises(CheckFailed, match=r"24 rows do not divide by 5"):
        loop(prompts=6, group_size=4, dp=5)
