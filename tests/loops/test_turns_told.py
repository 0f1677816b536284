"""Turns of real runs are told to the controller: they go on at their engine, move to one that is synced already, or wait for the sync."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, gone

from rlflow.run.ledger import read_books

# Engines and trainer hold the same weights at every version (lr=0): the log-probs after a move can be held against the trainer's.
PIPELINE = '''
import asyncio
import time
from dataclasses import dataclass

import operators.sync
from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.environment import HigherLower, HigherLowerEpisode, Reply, Start
from operators.fields import Advantages, OldLogProbs, ResponseMask, RolloutLogProbs
from operators.loss import ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.trainers import Torch
from rlflow import Feedback, Next, Worker, operator, pipeline


class TrainRows(ModelRows, PpoRows):
    pass


def told(what: str) -> None:
    with open(LOG, "a") as file:
        file.write(what + "\\n")


class Slow(HigherLowerEpisode):
    """Some are slower than others, so that they are at different turns when a sync begins."""

    async def step(self, text: str) -> Reply:
        await asyncio.sleep(0.1 * (1 + self.secret % 4))
        told("turn")
        return await super().step(text)


@dataclass(frozen=True, kw_only=True)
class Game(HigherLower):
    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        return Start(Slow(self, int(answer)))


@operator(per="batch", serves="engine")
def slow_sync(weights: Next, engine: Worker) -> Next:
    """Each engine takes so long that turns end meanwhile."""
    told("sync begins")
    time.sleep(SECONDS)
    synced = operators.sync.sync(weights, engine)
    told("sync ends")
    return synced


@operator(per="row", corrects=("version", "engine"))
def agreed(advantages: Advantages, old: OldLogProbs, rollout: RolloutLogProbs, mask: ResponseMask) -> Advantages:
    gap = (old - rollout).abs().where(mask, old.new_zeros(()))
    assert mask.any() and (rollout.where(mask, rollout.new_tensor(-1.0)) < 0).all(), "nothing was sampled"
    assert gap.max() < 1e-4, f"engine and trainer differ by {gap.max()}"
    return advantages.clone()


@pipeline
def turning(engines: int = 2, max_lag: int = 2) -> None:
    actor, engine = Torch("actor", lr=0.0), Embedded("engine", max_new_tokens=2, capacity=4, replicas=engines)
    policy = Feedback("policy", init=actor.load(), max_lag=max_lag)
    prompt = dispatch(dataset("guess.parquet", tokenizer="tiny"), n=2)
    ready = form_batch(engine.rollout_turns(policy.served, prompt, environment=Game(turns=6)), prompts=4)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)
    adv = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    checked = agreed(adv.advantages, old, ready.rollout_log_probs, ready.response_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=checked,
    )
    micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)
    policy.close(slow_sync(actor.train(policy.move, micro.loss(ppo_clip())), engine))
'''


@pytest.fixture
def turning(start_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """`turning(SECONDS, flags)` starts a run whose syncs take so long an engine; turns.log tells what happened."""

    def start(seconds: float, *flags: str) -> Run:
        (tmp_path / "turning.py").write_text(PIPELINE.replace("SECONDS", str(seconds)).replace("LOG", repr(str(tmp_path / "turns.log"))))
        return start_run(str(tmp_path / "turning.py"), *flags)

    return start


def counted(run: Run, name: str) -> float:
    return sum(line["metrics"].get(f"turns/{name}", 0.0) for line in run.steps())


def wait_until_all_wait(log: Path) -> None:
    """Until an engine is being synced, and nothing has happened for longer than a turn takes."""
    deadline, seen, since = time.monotonic() + 60, list[str](), time.monotonic()
    while True:
        lines = log.read_text().splitlines()
        if lines != seen:
            seen, since = lines, time.monotonic()
        syncs = [line for line in lines if line != "turn"]
        if syncs[-1] == "sync begins" and time.monotonic() - since > 0.8:
            return
        assert time.monotonic() < deadline, lines[-20:]
        time.sleep(0.02)


def finished(run: Run) -> list[dict[str, Any]]:
    code, _, err = run.end(280)
    assert code == 0, err
    return run.steps()


@pytest.mark.parametrize(("pipeline", "rows"), [("multiturn", 1), ("forking", 2)])
def test_every_turn_but_the_first_is_told_once(start_run: Callable[..., Run], pipeline: str, rows: int) -> None:
    """A turn is one token here; a prefix that leaves share is trained once."""
    flags = ("--engines", "2", "--prompts", "4", "--group-size", "4", "--steps", "3", "--eval-every", "2")
    for line in finished(start_run(pipeline, *flags)):
        assert line["rows"] <= 16 * rows
        assert line["metrics"]["turns/continued"] == line["metrics"]["actor.train/tokens"] - 16
        assert line["metrics"]["turns/continued"] > 16


def test_a_turn_that_ends_while_its_engine_is_synced_moves_to_one_that_is(turning: Callable[..., Run]) -> None:
    """The engines are synced one after the other. What was sampled after a move has the log-probs of the whole history."""
    run = turning(0.5, "--steps", "8")
    steps = finished(run)
    assert [line["rows"] for line in steps] == [8] * 8
    assert counted(run, "moved") > 0
    assert counted(run, "moved") < counted(run, "continued")
    assert not [line for line in run.lines() if line["kind"] == "dropped"]


def test_where_the_only_engine_is_synced_turns_wait_for_it(turning: Callable[..., Run]) -> None:
    run = turning(0.5, "--steps", "6", "--engines", "1")
    finished(run)
    assert counted(run, "moved") == 0
    assert counted(run, "waited_seconds") > 0.5
    assert not [line for line in run.lines() if line["kind"] == "dropped"]


@pytest.mark.parametrize("victim", ["engine.0", "engine.0.rollout", "actor"])
def test_turns_of_who_dies_are_played_again(turning: Callable[..., Run], victim: str) -> None:
    """In a run in which they are at their own engine, have moved to the other one, wait for either."""
    run = turning(0.5, "--steps", "12", "--save-every", "2")
    run.wait_for_step(3)
    run.children()[victim].send_signal(signal.SIGKILL)
    steps = finished(run)
    assert sorted({line["step"] for line in steps}) == list(range(1, 13))
    assert all(line["rows"] == 8 for line in steps)
    assert counted(run, "moved") > 0
    assert counted(run, "waited_seconds") > 0.5
    counters = read_books(run.folder).counters
    assert counters is not None
    assert counters.highest_attempt > 0  # the first one is 0: some began anew
    assert not [line for line in run.lines() if line["kind"] == "dropped"]


def test_turns_that_wait_do_not_hold_up_the_end(turning: Callable[..., Run], tmp_path: Path) -> None:
    """Ctrl-C in a sync, with all trajectories between two turns."""
    run = turning(3.0, "--steps", "50", "--engines", "1")
    run.wait_for_step(1)
    wait_until_all_wait(tmp_path / "turns.log")
    assert run.steps()[-1]["queue"]["in_flight"] > 0
    children = run.children()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end(60)
    assert code == 0, err
    assert "stopped at version" in out
    assert all(gone(child) for child in children.values())
