"""When the training forward may not stand in: each case differs from one where it may in a single point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.fields import AttentionMask, InputIds, LogProbs, Policy, PositionIds
from operators.loss import ppo_clip
from operators.records import ModelRows, PolicyForward, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from operators.trainers import ModelRowsT, Torch
from rlflow import CheckFailed, Feedback, Loss, Move, Next, Objective, Tensor, Weights, operator, pipeline
from rlflow.errors import UsageError
from rlflow.language.loss import from_forward_of


class TrainRows(ModelRows, PpoRows):
    """What is trained on."""


class AlwaysScored(ppo_clip):
    """Reads the same fields, and wants them as they were scored."""

    @property
    def from_forward(self) -> Mapping[str, str]:
        return {}


@operator(per="row")
def shifted(position_ids: PositionIds) -> PositionIds:
    return position_ids + 1


@operator(per="row")
def all_true(attention_mask: AttentionMask) -> AttentionMask:
    return attention_mask | True


class Scorer(Torch):
    """Other ways to score, and a trainer that fills nothing in."""

    @operator(per="row")
    def heated(
        self, weights: Weights[Policy], ids: InputIds, positions: PositionIds, mask: AttentionMask, *, temperature: float = 0.5
    ) -> LogProbs:
        return self.engine.log_probs(ids, positions, mask) / temperature

    @operator(per="batch")
    def centred(self, weights: Weights[Policy], ids: InputIds, positions: PositionIds, mask: AttentionMask) -> LogProbs:
        scored = self.engine.log_probs(ids, positions, mask)
        return scored - scored.mean()

    @operator(per="micro")
    def plain(self, weights: Move[Policy], objective: Objective[PolicyForward, ModelRowsT]) -> Next[Policy]:
        raise NotImplementedError

    @operator(per="micro", from_forward="updates")
    def reader(self, weights: Move[Policy], objective: Objective[PolicyForward, TrainRows], *, updates: int = 1) -> Next[Policy]:
        raise NotImplementedError


Make = Callable[[Any, Any, Any], Any]  # actor, feedback, rows -> old log-probs
Train = Callable[[Any, Any, Any], Any]  # actor, feedback, micro-batches -> next weights


def own(actor: Any, policy: Any, ready: Any) -> Any:
    return actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)


def train(actor: Any, policy: Any, micro: Any) -> Any:
    return actor.train(policy.move, micro.loss(ppo_clip()))


@pipeline
def loop(score: Make = own, fit: Train = train) -> None:
    actor, engine = Scorer("actor"), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=8)), prompts=32)
    rewards = shape_rewards(integer_match(ready.response_text, ready.answer, ready.response_mask).token_level_scores)
    advantages = grpo(rewards, ready.response_mask, ready.uid).advantages
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=score(actor, policy, ready), advantages=advantages,
    )  # fmt: skip
    policy.close(sync(fit(actor, policy, micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)), engine))


def spared(**how: Any) -> list[dict[str, str]]:
    return list(loop(**how).facts.from_forward.values())


def test_the_case_that_the_others_differ_from() -> None:
    assert spared() == [{"old_log_probs": "log_probs"}]


@pytest.mark.parametrize(
    "score",
    [
        pytest.param(lambda a, p, r: a.heated(p.current, r.input_ids, r.position_ids, r.attention_mask), id="an option of its own"),
        pytest.param(lambda a, p, r: a.centred(p.current, r.input_ids, r.position_ids, r.attention_mask), id="looks at other rows"),
        pytest.param(lambda a, p, r: a.log_probs(p.current, r.input_ids, shifted(r.position_ids), r.attention_mask), id="other positions"),
        pytest.param(lambda a, p, r: a.log_probs(p.current, r.input_ids, r.position_ids, all_true(r.attention_mask)), id="other mask"),
    ],
)
def test_other_numbers_are_scored(score: Make) -> None:
    assert spared(score=score) == []


@pytest.mark.parametrize(
    "fit",
    [
        pytest.param(lambda a, p, m: a.train(p.move, m.loss(AlwaysScored())), id="a loss that does not allow it"),
        pytest.param(lambda a, p, m: a.train(p.move, m.loss(ppo_clip(), AlwaysScored())), id="two losses, one does not allow it"),
        pytest.param(lambda a, p, m: a.train(p.move, m.loss(ppo_clip()), updates=2), id="two updates"),
        pytest.param(lambda a, p, m: a.plain(p.move, m.loss(ppo_clip())), id="a trainer that fills nothing in"),
        pytest.param(lambda a, p, m: a.reader(p.move, m.loss(ppo_clip())), id="a trainer that reads it itself"),
    ],
)
def test_who_trains_must_allow_it(fit: Train) -> None:
    assert spared(fit=fit) == []


def test_a_copy_of_the_weights_is_scored() -> None:
    """The engine's replica has the same numbers at lag 0, but nobody holds them to it."""

    def other_worker(actor: Any, policy: Any, ready: Any) -> Any:
        second = Torch("second")
        return second.log_probs(second.load(), ready.input_ids, ready.position_ids, ready.attention_mask)

    with pytest.raises(CheckFailed, match="RLF12"):  # frozen log-probs are no anchor at all
        loop(score=other_worker)


class Misnamed(Loss[PolicyForward, PpoRows]):
    field: str = "old_log_probs"
    source: str = "log_probs"

    @property
    def from_forward(self) -> Mapping[str, str]:
        return {self.field: self.source}

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return forward.log_probs


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Misnamed(field="old_logprobs"), "names `old_logprobs`, `PpoRows` has no such field; did you mean `old_log_probs`"),
        (Misnamed(source="logprobs"), "names `logprobs`, `PolicyForward` has no such field; did you mean `log_probs`"),
    ],
)
def test_a_name_that_does_not_exist_is_told(loss: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_forward_of(loss)


def test_the_parameter_that_counts_the_passes_must_exist() -> None:
    with pytest.raises(CheckFailed, match='`fit` has from_forward="updates" but no such parameter'):

        @operator(per="micro", from_forward="updates")
        def fit(weights: Move[Policy]) -> Next[Policy]:
            raise NotImplementedError
