"""An environment that raises, waits for ever or blocks costs the trajectories that it plays, and their groups: the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from run_cases import Run

PIPELINE = '''
import asyncio
import os
import time
from dataclasses import dataclass

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.dialogue import EnvironmentLimits
from operators.engines import Embedded
from operators.trainers import Torch
from operators.environment import HigherLower, HigherLowerEpisode, Reply, Start
from operators.loss import ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import episode_scores, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from rlflow import Feedback, pipeline


class TrainRows(ModelRows, PpoRows):
    pass


class Faulty(HigherLowerEpisode):
    """Secrets 0 to 3 are never played to the end."""

    async def step(self, text: str) -> Reply:
        match self.secret:
            case 0:
                raise RuntimeError("the game crashed")
            case 1:
                await asyncio.sleep(3600)
            case 2:
                time.sleep(6)
            case 3 if self.rules.leaves:
                os._exit(9)
        return await super().step(text)


@dataclass(frozen=True, kw_only=True)
class Game(HigherLower):
    leaves: bool = False  # its process, with secret 3

    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        return Start(Faulty(self, int(answer)))


@pipeline
def faulty(prompts: int = 24, isolated: bool = False) -> None:
    actor, engine = Torch("actor"), Embedded("engine", max_new_tokens=1)
    policy = Feedback("policy", init=actor.load())
    limits = EnvironmentLimits(reset_s=5.0, step_s=1.0, resets=1, isolated=isolated)
    prompt = dispatch(dataset("guess.parquet", tokenizer="tiny"), n=2)
    game = Game(turns=2, leaves=isolated)
    ready = form_batch(engine.rollout_turns(policy.served, prompt, environment=game, limits=limits), prompts=prompts)
    score = episode_scores(ready.episode_reward, ready.response_mask)
    adv = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages,
    )
    micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip())), engine))
'''


def test_environments_that_fail_cost_their_groups_and_nothing_else(start_run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(PIPELINE)
    run = start_run(str(file), "--steps", "2")
    code, _, err = run.end(280)
    assert code == 0, err
    steps = run.steps()
    assert [line["rows"] for line in steps] == [48, 48]  # every batch is whole: what was dropped is refilled
    assert sum(line["dropped"].get("attempts", 0) for line in steps) > 0
    log = (run.folder / "logs" / "engine.rollout.log").read_text()
    for said in (
        "raised RuntimeError: the game crashed",
        "did not return within 1 s",
        "cannot be cancelled: it blocks instead of awaiting",
    ):
        assert said in log


def test_an_environment_that_ends_its_process_costs_its_groups_and_nothing_else(start_run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(PIPELINE)
    run = start_run(str(file), "--steps", "5", "--prompts", "3", "--isolated")
    code, _, err = run.end(280)
    assert code == 0, err
    assert [line["rows"] for line in run.steps()] == [6] * 5
    assert "ended its process" in (run.folder / "logs" / "engine.rollout.log").read_text()
