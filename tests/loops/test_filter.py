"""Operators before the batch is formed: rewards and shaping a trajectory at a time, advantages and a filter a group at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from run_cases import Run

from rlflow.cli import main

PIPELINE = '''
from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.trainers import Torch
from operators.fields import Advantages, AttentionMask, InputIds, IsPad, PositionIds, ResponseMask, TokenScores, Uid
from operators.filters import keep_mixed
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from rlflow import Feedback, Record, RowsT, operator, pipeline


class TrainRows(ModelRows, PpoRows):
    """What the forward and the losses read."""


class Judged(Record):
    """What is kept or dropped, a group at a time."""

    input_ids: InputIds
    attention_mask: AttentionMask
    position_ids: PositionIds
    response_mask: ResponseMask
    is_pad: IsPad
    uid: Uid
    advantages: Advantages


@operator(per="group", rows="filter")
def keep_first(rows: RowsT, uid: Uid) -> RowsT:
    """Breaks the rule of filters: one row of every group."""
    first = object.__new__(type(rows))
    for name, value in vars(rows).items():  # the fields that somebody reads later
        object.__setattr__(first, name, value[:1])
    return first


@pipeline
def filtered(prompts: int = 3, group_size: int = 4, dp: int = 1, data: str = "digits.parquet", breaks: bool = False) -> None:
    actor, engine = Torch("actor", dp=dp), Embedded("engine", max_new_tokens=2)
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(dataset(data, tokenizer="tiny"), n=group_size))
    score = integer_match(sample.response_text, sample.answer, sample.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    early = grpo_advantage(token_level_rewards=rewards, response_mask=sample.response_mask, uid=sample.uid)
    judged = Judged(
        input_ids=sample.input_ids, attention_mask=sample.attention_mask, position_ids=sample.position_ids,
        response_mask=sample.response_mask, is_pad=sample.is_pad, uid=sample.uid, advantages=early.advantages,
    )
    mixed = keep_first(judged, sample.uid) if breaks else keep_mixed(judged, score.token_level_scores, sample.uid)
    ready = form_batch(mixed, prompts=prompts)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=ready.advantages,
    )
    rows = rebalance(pad(rows, multiple=dp), pieces=4 * dp)
    trained = actor.train(policy.move, micro_pack(shard(rows, on=actor), max_tokens=4096).loss(ppo_clip(0.2, 0.28), entropy_bonus(0.1)))
    policy.close(sync(trained, engine))
'''


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    file = tmp_path / "filtered.py"
    file.write_text(PIPELINE)
    return str(file)


def test_the_check_accepts_it(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", pipeline]) == 0
    assert "no error" in capsys.readouterr().out


@pytest.mark.parametrize("dp", ["1", "2"])
def test_groups_that_score_alike_are_dropped_and_refilled(start_run: Callable[..., Run], pipeline: str, dp: str) -> None:
    run = start_run(pipeline, "--steps", "2", "--dp", dp)
    code, out, err = run.end(240)
    assert code == 0, err
    steps = run.steps()
    assert [line["rows"] for line in steps] == [12, 12]  # three whole groups of four, whatever was dropped
    # in a group that was kept some are right and some are not: of 12 rows at least 3 and at most 9
    assert all(3 / 12 <= line["metrics"]["integer_match/is_correct"] <= 9 / 12 for line in steps)
    dropped = [line for line in run.lines() if line["kind"] == "dropped"]
    assert {line["reason"] for line in dropped} == {"keep_mixed"}
    assert steps[-1]["dropped"] == {"keep_mixed": len([line for line in run.lines()[: run.lines().index(steps[-1])] if line in dropped])}
    assert all(line["pool_bytes"] == 0 for line in steps)
    assert not any(said.startswith("prompt ") for said in out.splitlines())  # that a filter filters is no news
    assert "  keep_mixed " in out  # but what it is that it drops
    kept = steps[-1]["bias"]["kept"]
    assert (kept["groups"], kept["tries"]) == (3, 12)  # of the first step: the second was not over yet
    assert 3 <= kept["passes"] <= 9


def test_a_filter_that_drops_every_group_ends_the_run(start_run: Callable[..., Run], pipeline: str, tmp_path: Path) -> None:
    table = pq.read_table(Path(__file__).parents[2] / "pipelines" / "data" / "digits.parquet")
    answers = table.column_names.index("answer")
    pq.write_table(table.set_column(answers, "answer", [["none"] * len(table)]), tmp_path / "hopeless.parquet")
    run = start_run(pipeline, "--steps", "2", "--data", "hopeless.parquet")
    code, _, err = run.end(240)
    assert code == 1
    assert "193 groups were dropped without a batch in between, the last one by keep_mixed: `keep_mixed` keeps no row of it" in err


def test_a_filter_that_takes_a_group_apart_ends_the_run(start_run: Callable[..., Run], pipeline: str) -> None:
    run = start_run(pipeline, "--steps", "2", "--breaks")
    code, _, err = run.end(240)
    assert code == 1
    assert "`keep_first` keeps 1 of the 4 rows of prompt" in err
    assert "a filter per group keeps all of one or none" in err
