"""A filter that keeps a part of a group: the rest of it is accounted for, and the group trains with what is left."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from run_cases import Run

from rlflow.cli import main
from rlflow.run.audit import audit

PIPELINE = '''
from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.fields import (
    Advantages, InputIds, IsPad, PositionIds, ResponseMask, Returns, RolloutLogProbs, TokenRewards, TrajUid, Uid,
)
from operators.filters import keep_ended
from operators.loss import entropy_bonus, ppo_clip
from operators.mismatch import anchor_on_rollout
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from operators.trainers import Torch
from rlflow import Feedback, Record, RowsT, operator, pipeline
from rlflow.errors import DataError


class TrainRows(ModelRows, PpoRows):
    """What the forward and the losses read."""


class Judged(Record):
    input_ids: InputIds
    rollout_log_probs: RolloutLogProbs
    position_ids: PositionIds
    response_mask: ResponseMask
    is_pad: IsPad
    uid: Uid
    traj_uid: TrajUid
    token_level_rewards: TokenRewards


class Marked(Judged):
    """With what an operator made of the whole group, before a part of it was taken out."""

    marks: Returns


@operator(per="group")
def marked(response_mask: ResponseMask, uid: Uid, traj_uid: TrajUid) -> Returns:
    """Names its row at every position."""
    return (100.0 * uid + traj_uid + 1)[:, None] * response_mask


@operator(per="batch")
def checked(advantages: Advantages, marks: Returns, response_mask: ResponseMask, uid: Uid, traj_uid: TrajUid) -> Advantages:
    """Raises where a row has the marks of another."""
    if not bool((marks == (100.0 * uid + traj_uid + 1)[:, None] * response_mask).all()):
        raise DataError("marks of other rows")
    return advantages.clone()


@operator(per="group", rows="filter", least_kept=2)
def keep_first(rows: RowsT, uid: Uid) -> RowsT:
    """Breaks what it declares: one row of every group."""
    first = object.__new__(type(rows))
    for name, value in vars(rows).items():
        object.__setattr__(first, name, value[:1])
    return first


def judged_rows(sample, rewards, marks=None):
    given = dict(
        input_ids=sample.input_ids, rollout_log_probs=sample.rollout_log_probs, position_ids=sample.position_ids,
        response_mask=sample.response_mask, is_pad=sample.is_pad, uid=sample.uid, traj_uid=sample.traj_uid, token_level_rewards=rewards,
    )
    return Judged(**given) if marks is None else Marked(**given, marks=marks)


def finish(actor, engine, policy, ready, advantages, dp):
    old = anchor_on_rollout(ready.rollout_log_probs)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=advantages,
    )
    rows = rebalance(pad(rows, multiple=dp), pieces=4 * dp)
    trained = actor.train(policy.move, micro_pack(shard(rows, on=actor), max_tokens=4096).loss(ppo_clip(0.2, 0.28), entropy_bonus(0.1)))
    policy.close(sync(trained, engine))


@pipeline
def remainder(prompts: int = 3, group_size: int = 4, longest: int = 16, dp: int = 1, early: bool = False, breaks: bool = False) -> None:
    actor, engine = Torch("actor", dp=dp), Embedded("engine", max_new_tokens=longest)
    policy = Feedback("policy", init=actor.load(), max_lag=1)
    sample = engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=group_size))
    score = integer_match(sample.response_text, sample.answer, sample.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    marks = marked(sample.response_mask, sample.uid, sample.traj_uid) if early else None
    judged = judged_rows(sample, rewards, marks)
    left = keep_first(judged, sample.uid) if breaks else keep_ended(judged, sample.is_truncated, sample.uid, sample.traj_uid)
    ready = form_batch(left, prompts=prompts)
    advantages = grpo_advantage(
        token_level_rewards=ready.token_level_rewards, response_mask=ready.response_mask, uid=ready.uid
    ).advantages
    if early:
        advantages = checked(advantages, ready.marks, ready.response_mask, ready.uid, ready.traj_uid)
    finish(actor, engine, policy, ready, advantages, dp)
'''


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    file = tmp_path / "remainder.py"
    file.write_text(PIPELINE)
    return str(file)


def test_the_check_accepts_it(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", pipeline]) == 0
    assert main(["check", pipeline, "--early"]) == 0
    assert "no error" in capsys.readouterr().out


def trained(run: Run, timeline: int) -> list[list[int]]:
    """Of the history: (uid, trajectories, oldest version, taken out) of every group that this timeline trained, whole ones with 0."""
    lines = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
    found = [group for line in lines if line["kind"] == "trained" and line["timeline"] == timeline for group in line["groups"]]
    return [[*group, 0][:4] for group in found]


@pytest.mark.parametrize("flags", [("--dp", "2"), ("--early",)])
def test_groups_train_with_what_the_filter_leaves_of_them(start_run: Callable[..., Run], pipeline: str, flags: tuple[str, ...]) -> None:
    run = start_run(pipeline, "--steps", "3", *flags)
    code, _, err = run.end(240)
    assert code == 0, err
    groups = trained(run, 0)
    assert len(groups) == 9
    assert all(left + taken_out == 4 and left >= 2 for _, left, _, taken_out in groups)
    assert any(taken_out for *_, taken_out in groups)
    assert [line["rows"] for line in run.steps()] == [sum(left for _, left, *_ in groups[i : i + 3]) for i in (0, 3, 6)]
    assert run.steps()[-1]["pool_bytes"] == 0
    assert audit(run.folder).faults == ()


def test_a_resume_after_a_kill_trains_the_same_remainder(
    start_run: Callable[..., Run], resume_run: Callable[..., Run], pipeline: str
) -> None:
    """Nothing is saved, so it begins again: groups that were sampled by version 0 keep their rows, and what was left of them."""
    run = start_run(pipeline, "--steps", "100", "--save-every", "0")
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait(30)
    before = {uid: counts for uid, *counts in trained(run, 0)[:3]}  # of batch 0: all of version 0
    with closing(sqlite3.connect(run.folder / "ledger.sqlite")) as ledger:
        of_filter = "SELECT uid, count(*) FROM trajectories WHERE state = 'dropped' AND reason = 'keep_ended' GROUP BY uid"
        dropped = dict(ledger.execute(of_filter))
    assert {uid: dropped.get(uid, 0) for uid in before} == {uid: taken_out for uid, (*_, taken_out) in before.items()}
    assert audit(run.folder).faults == ()
    resumed = resume_run(run.folder, "--steps", "3")
    code, _, err = resumed.end(240)
    assert code == 0, err
    after = {uid: counts for uid, *counts in trained(run, 1)}
    assert {uid: after[uid] for uid in before} == before
    assert audit(run.folder).faults == ()


def test_a_filter_that_leaves_less_than_it_declares_ends_the_run(start_run: Callable[..., Run], pipeline: str) -> None:
    run = start_run(pipeline, "--steps", "2", "--breaks")
    code, _, err = run.end(240)
    assert code == 1
    assert "`keep_first` keeps 1 trajectory of prompt" in err
    assert "declares least_kept=2" in err
