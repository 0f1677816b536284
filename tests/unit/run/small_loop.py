"""A whole loop on made-up numbers: two leaf rows a trajectory, of different lengths; no engine, no server, real operators otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.fields import Answer, B, IsCorrect, OldLogProbs, P, Policy, Q, ResponseMask, ResponseText, S, Uid
from operators.loss import ppo_clip
from operators.records import ModelRows, PolicyForward, PpoRows, Prompts, Sample, Scores, Trajectories
from operators.reward import shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from rlflow import Current, Feedback, Frozen, Move, Next, Objective, Served, State, Worker, fresh, operator, pipeline
from rlflow.compile.plan import Plan
from rlflow.modules import make_worker
from rlflow.run.graph import GraphView
from rlflow.run.interpret import Interpreter

PROMPTS = [[10, 11], [20], [30, 31, 32]]


@operator(per="row", sizes={P: fresh(), Q: fresh()})
def prompts_of_a_test() -> Prompts:
    ids: Any = [np.array(ids) for ids in PROMPTS]
    return Prompts(prompt_ids=ids, uid=torch.arange(3), answer=["one", "two", "drei ü"], template=["a", "b", "c"])


class Engine(Worker):
    """Trajectory j of a prompt has leaf 0 with j + 1 tokens after the prompt and leaf 1 with one more; sampled by `version`, then + 1."""

    @operator(per="row", sizes={B: fresh(), S: fresh()})
    def rollout(self, policy: Served[Policy], prompts: Trajectories) -> Sample:
        rows = [(i, leaf) for i in range(len(prompts.answer)) for leaf in (0, 1)]
        ids = [
            torch.cat([torch.as_tensor(prompts.prompt_ids[i]), torch.full((int(prompts.traj_uid[i]) + 1 + leaf,), 7)]) for i, leaf in rows
        ]
        own = [row == 7 for row in ids]
        versions = [torch.where(mine, policy.version + leaf, -1).int() for mine, (_, leaf) in zip(own, rows, strict=True)]

        def padded(parts: list[torch.Tensor]) -> torch.Tensor:
            return pad_sequence(parts, batch_first=True)

        return Sample(
            input_ids=padded(ids),
            attention_mask=padded([torch.ones(len(row), dtype=torch.bool) for row in ids]),
            position_ids=padded([torch.arange(len(row)) for row in ids]),
            responses=padded([row[1:] for row in ids]),
            response_mask=padded([mine[1:] for mine in own]),
            rollout_log_probs=padded([mine[1:].float() * -0.5 for mine in own]),
            token_versions=padded([v[1:] for v in versions]),
            uid=torch.as_tensor(prompts.uid)[[i for i, _ in rows]],
            traj_uid=torch.as_tensor(prompts.traj_uid)[[i for i, _ in rows]],
            leaf=torch.tensor([leaf for _, leaf in rows]),
            version_tag=torch.full((len(rows),), policy.version),
            is_pad=torch.zeros(len(rows), dtype=torch.bool),
            is_truncated=torch.zeros(len(rows), dtype=torch.bool),
            response_text=[f"{prompts.answer[i]}/{leaf}" for i, leaf in rows],
            answer=[prompts.answer[i] for i, _ in rows],
        )


class Trainer(Worker):
    """Keeps what it was given to train on."""

    state = (State("given", 0, in_checkpoint=False),)

    def __init__(self, name: str, *, dp: int = 1) -> None:
        super().__init__(name, dp=dp)
        self.given: list[Objective[Any, Any]] = []

    @operator(per="run")
    def load(self) -> Frozen[Policy]:
        return Frozen(self.name, "frozen", 0, self)

    @operator(per="row")
    def log_probs(self, weights: Current[Policy], uid: Uid, response_mask: ResponseMask) -> OldLogProbs:
        """So much that every row shows which one it is."""
        return response_mask.float() * uid[:, None]

    @operator(per="micro")
    def train(self, weights: Move[Policy], objective: Objective[PolicyForward, TrainRows]) -> Next[Policy]:
        self.given.append(objective)
        self.measured = {"loss": 0.25}
        return Next(self.name, "next", weights.version + 1, self)


class TrainRows(ModelRows, PpoRows):
    """What is trained on."""

    uid: Uid


@operator(per="row")
def judge(response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, bonus: float = 0.0) -> Scores:
    """1 for leaf 0, plus the bonus."""
    right = torch.tensor([float(text == f"{wanted}/0") for text, wanted in zip(response_text, answer, strict=True)])
    return Scores(token_level_scores=response_mask.float() * (right[:, None] + bonus), is_correct=right)


@operator(per="batch")
def count_right(is_correct: IsCorrect) -> IsCorrect:
    """A field from a field."""
    return is_correct + 1.0


@operator(per="batch", serves="engine")
def sync(weights: Next[Policy], engine: Worker) -> Next[Policy]:
    return weights


@pipeline
def small(dp: int = 1, mini_batches: int = 1, prompts: int = 3, n: int = 2, bonus: float = 0.0, early: bool = False) -> None:
    actor, engine = Trainer("actor", dp=dp), Engine("engine")
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(prompts_of_a_test(), n=n))
    ready = form_batch(sample, prompts=prompts)
    score = judge(ready.response_text, ready.answer, ready.response_mask, bonus=bonus)
    rewards = shape_rewards(score.token_level_scores)
    adv = grpo(token_level_rewards=rewards, response_mask=ready.response_mask, uid=ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.uid, ready.response_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages, uid=ready.uid,
    )  # fmt: skip
    rows = rebalance(pad(rows, multiple=dp * mini_batches), pieces=dp, mini_batches=mini_batches)
    micro = micro_pack(shard(rows, on=actor, mini_batches=mini_batches), max_tokens=16)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip(0.2, 0.28))), engine))


def interpreter_of(plan: Plan) -> tuple[GraphView, Interpreter]:
    """What a worker process makes of a plan."""
    view = GraphView(Plan.from_json(plan.to_json()))
    return view, Interpreter(view, {worker.id: make_worker(worker) for worker in view.graph.workers})
