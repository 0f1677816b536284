"""A loop that is right, in pieces: the programs of this folder take those that they do not get wrong."""
from __future__ import annotations

from functools import cached_property

from rlflow import Devices, Feedback, Tensor
from vocabulary import (
    Embedded, Leaves, Sample, Scores, Torch, TrainRows, dataset, dispatch, exact_match, form_batch, grpo, micro_pack, pad, ppo_clip, rebalance, shaping, shard, sync,
)


class Start:
    """From the data set to advantages; what a program does not ask for is not in its graph."""

    def __init__(self, *, max_lag: int = 0, dp: int = 2, prompts: int = 64, tree: bool = False, temperature: float = 1.0, top_p: float = 1.0, on: Devices | None = None) -> None:
        self.prompts = prompts
        self.actor, self.engine = Torch("actor", dp=dp, on=on), Embedded("engine", temperature=temperature, top_p=top_p, on=on)
        self.policy = Feedback("policy", init=self.actor.load(), max_lag=max_lag)
        self.prompt = prompt = dispatch(dataset("train.parquet"), n=8)
        if tree:
            self.sample: Sample = self.engine.rollout_tree(self.policy.served, prompt)
        else:
            self.sample = self.engine.rollout(self.policy.served, prompt)

    @cached_property
    def ready(self) -> Sample:
        return form_batch(self.sample, prompts=self.prompts)

    @cached_property
    def score(self) -> Scores:
        return exact_match(self.ready.response_text, self.ready.answer, self.ready.response_mask)

    @cached_property
    def rewards(self) -> Tensor:
        return shaping(self.score.token_level_scores)

    @cached_property
    def advantages(self) -> Tensor:
        of_rows = {"traj_uid": self.ready.traj_uid} if isinstance(self.ready, Leaves) else {}
        return grpo(self.rewards, self.ready.response_mask, self.ready.uid, **of_rows).advantages

    def old(self) -> Tensor:
        return self.actor.log_probs(self.policy.current, self.ready.input_ids, self.ready.response_mask)

    def rows(self, advantages: Tensor | None = None) -> TrainRows:
        """What is trained on, unless told otherwise with the advantages above."""
        used = self.advantages if advantages is None else advantages
        return TrainRows(input_ids=self.ready.input_ids, response_mask=self.ready.response_mask, old_log_probs=self.old(), advantages=used)

    def finish(self, rows: TrainRows, *, multiple: int = 2) -> None:
        """Pad, rebalance, shard, pack, train, sync."""
        micro = micro_pack(shard(rebalance(pad(rows, multiple=multiple), pieces=8), on=self.actor), max_tokens=4096)
        self.policy.close(sync(self.actor.train(self.policy.move, micro.loss(ppo_clip())), self.engine))
