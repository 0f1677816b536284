"""An operator that raises, wherever it stands, ends the run: exit code 1, its name, the process, the cause, where the logs are."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_cases import SMALL, Run

PIPELINE = '''
import dataclasses

import operators.sync
from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.trainers import Torch
from operators.fields import Answer, Policy, ResponseMask, ResponseText
from operators.loss import ppo_clip
from operators.records import ModelRows, PpoRows, Prompts, Sample, Scores, Trajectories
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from rlflow import Feedback, Move, Next, Objective, Served, fresh, operator, pipeline
from operators.fields import B, S, T
from operators.records import PolicyForward
from rlflow.errors import DataError


class TrainRows(ModelRows, PpoRows):
    """What is trained on."""


class Actor(Torch):
    def __init__(self, name: str, *, broken: str) -> None:
        super().__init__(name)
        self.broken = broken

    def open(self, site):
        super().open(site)
        if self.broken == "open":
            raise DataError("the actor's seventh seal is not broken: break it")

    def save(self, path):
        if self.broken == "save":
            raise OSError("the disk of the actor is full")
        return super().save(path)

    @operator(per="micro")
    def train(self, weights: Move[Policy], objective: Objective[PolicyForward, TrainRows]) -> Next[Policy]:
        if self.broken == "train":
            raise ValueError("this loss is no loss")
        return Next(self.name, "next", self._update(objective, 1), self)


class Engine(Embedded):
    def __init__(self, name: str, *, broken: str) -> None:
        super().__init__(name, max_new_tokens=2)
        self.broken = broken

    @operator(per="row", sizes={B: T, S: fresh()})
    def rollout(self, policy: Served[Policy], prompts: Trajectories) -> Sample:
        if self.broken == "rollout":
            raise SystemExit("the dice are loaded")
        return super().rollout(policy, prompts)

    @operator(per="row", sink=True)
    def evaluate(self, policy: Served[Policy], prompts: Prompts, *, every: int) -> dict[str, float]:
        if self.broken == "evaluate":
            raise ValueError("nobody knows the answers")
        return {"reward": 0.0}


@operator(per="row")
def judge(response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, broken: str) -> Scores:
    if broken == "reward":
        raise DataError("row 3 has no judge: hire one")
    if broken == "sevens" and any("7" in one for one in answer):
        raise ValueError("seven is not for me to judge")
    scores = integer_match(response_text, answer, response_mask)
    if broken == "nan":
        scores.token_level_scores[["9" in one for one in answer]] = float("nan")
    return scores


@operator(per="batch", serves="engine")
def sync(weights: Next[Policy], engine: Embedded, *, broken: str) -> Next[Policy]:
    if broken == "sync":
        raise ValueError("the wire is cut")
    return operators.sync.sync(weights, engine)


@pipeline
def failing(broken: str, prompts: int = 2, group_size: int = 2, data: str = "digits.parquet") -> None:
    actor, engine = Actor("actor", broken=broken), Engine("engine", broken=broken)
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(dataset(data, tokenizer="tiny"), n=group_size))
    ready = form_batch(sample, prompts=prompts)
    score = judge(ready.response_text, ready.answer, ready.response_mask, broken=broken)
    rewards = shape_rewards(score.token_level_scores)
    adv = grpo_advantage(token_level_rewards=rewards, response_mask=ready.response_mask, uid=ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages,
    )
    micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip(0.2, 0.28))), engine, broken=broken))
    engine.evaluate(policy.served, dataset(data, split="test", tokenizer="tiny"), every=1)
'''


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("reward", "batch 0 could not be trained: `judge` on `host` raised DataError: row 3 has no judge: hire one\n"),
        ("train", "batch 0 could not be trained: `actor.train` on `actor` raised ValueError: this loss is no loss\n"),
        ("sync", "`sync` on `actor` raised ValueError: the wire is cut\n"),
        ("evaluate", "`engine.evaluate` on `engine.rollout` raised ValueError: nobody knows the answers\n"),
        ("rollout", "failed 3 times, the last time: `engine.rollout` on `engine.rollout` raised SystemExit: the dice are loaded\n"),
        ("save", "the last one of version 9: the checkpoint on `actor` raised OSError: the disk of the actor is full\n"),
    ],
)
def test_an_operator_that_raises_ends_the_run(start_run: Callable[..., Run], tmp_path: Path, broken: str, said: str) -> None:
    (tmp_path / "failing.py").write_text(PIPELINE)
    run = start_run(str(tmp_path / "failing.py"), "--broken", broken, "--steps", "9", "--save-every", "1")
    code, _, err = run.end(120)
    assert code == 1
    assert err.startswith("rlflow: the run failed: ")
    assert said in err
    assert f"what was printed: {run.folder / 'logs'}" in err


@pytest.mark.parametrize(
    ("broken", "digit", "said"),
    [
        ("sevens", "7", "`judge` on `host` raised ValueError: seven is not for me to judge"),
        ("nan", "9", "`judge` on `host` raised DataError: result of `judge`: `token_level_scores` of row 0 of 2 is nan"),
    ],
)
def test_a_group_that_an_operator_fails_on_leaves_its_batch(
    start_run: Callable[..., Run], tmp_path: Path, broken: str, digit: str, said: str
) -> None:
    (tmp_path / "failing.py").write_text(PIPELINE)
    run = start_run(str(tmp_path / "failing.py"), "--broken", broken, "--steps", "3", "--save-every", "0", "--prompts", "8")
    code, _, err = run.end(120)
    assert code == 0, err
    dropped = [line for line in run.lines() if line["kind"] == "dropped"]
    assert dropped
    assert all((line["reason"], line["detail"].splitlines()[0]) == ("batch", said) for line in dropped)
    assert sum(line["rows"] for line in run.steps()) == 2 * (3 * 8 - len(dropped))  # seats stay empty


@pytest.mark.parametrize(
    ("flags", "said", "process"),
    [
        (("--broken", "open"), "the actor's seventh seal is not broken: break it", "actor"),
        (("--broken", "", "--data", "nowhere.parquet"), "no data set 'nowhere.parquet': looked for ", "engine.rollout"),
    ],
)
def test_a_worker_that_cannot_start_says_only_why(
    start_run: Callable[..., Run], tmp_path: Path, flags: tuple[str, ...], said: str, process: str
) -> None:
    (tmp_path / "failing.py").write_text(PIPELINE)
    run = start_run(str(tmp_path / "failing.py"), *flags)
    code, _, err = run.end(120)
    assert code == 1
    assert err.startswith(f"rlflow: the run failed: {said}")
    assert f"(`{process}` could not start: {run.folder / 'logs' / process}.log)" in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 5  # why, which process, where the logs are, what to do, and how


def test_options_that_make_no_run_are_refused_before_a_folder_is_made(start_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, "--watermark", "1")
    code, _, err = run.end(60)
    assert code == 3
    assert "error[RLF308]: a watermark of 1 never holds a whole group of `policy`" in err
    assert "help: 2 to 8 are legal: `--watermark 2`" in err
    assert not run.folder.exists()


def test_ctrl_c_before_the_first_step_ends_quietly(start_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL)
    while not (run.folder / "sites" / "host.json").exists():
        time.sleep(0.05)
    children = run.children()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end(60)
    assert (code, err) == (0, "")
    assert "stopped before the first step" in out
    assert all(not child.is_running() for child in children.values())
