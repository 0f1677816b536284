# mypy: disable-error-code="empty-body"
"""verl's PPO and GRPO loop: its hops, and the names of its columns, as its documentation gives them. To be checked, not to be run.

data → repeat(n) → generate_sequences → reward → old_log_probs, ref_log_prob, values → advantage → update_critic, update_actor
                         ↑                                                                                  │
                         └──────────────────── weights to the rollout, version + 1 ─────────────────────────┘

There a column is a string that one hop puts into a dictionary and another hopes to find, so a flag can take away what is still read:

flag                                     what happened to users                                                              code
--no-response-mask                       D22: KeyError 'response_mask'                                                       RLF008
--no-advantages                          D22: KeyError 'advantages', after the rollout                                       RLF008
--use-kl-loss --no-reference             D22: KeyError 'ref_log_prob'                                                        RLF008
--no-response-mask-selected              S5: the loss mask was cut out of attention_mask, so tokens of tools were trained    RLF121
--adv-estimator optimal_token_baseline   G22: TypeError: no old_log_probs among the arguments that every estimator gets      RLF004
--policy-loss bypass                     G22: KeyError 'rollout_log_probs': nobody asked the rollout to keep them            RLF008
--no-old-log-prob                        V18: the loss lost what its ratio is taken against                                  RLF008

`--policy-loss bypass --calculate-log-probs --no-old-log-prob` is fine: then nothing reads old_log_probs.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from rlflow import (
    Feedback,
    Frozen,
    Loss,
    Micro,
    Move,
    Next,
    Objective,
    RowsT,
    Served,
    Tensor,
    Weights,
    Worker,
    absent,
    fresh,
    operator,
    pipeline,
)

from . import verl_columns as c
from .verl_columns import B, N, P, Q, R

W = TypeVar("W")
ColumnsT = TypeVar("ColumnsT", bound=c.ModelColumns)


@operator(per="row", sizes={P: fresh(), Q: fresh()})
def train_dataloader(train_files: str) -> c.Prompts: ...
@operator(per="row", rows="expand", sizes={B: P * N})
def repeat(batch: c.Prompts, *, n: Annotated[int, N]) -> c.Repeated: ...
@operator(per="group", rows="form")
def global_batch(rows: RowsT, *, prompts: int) -> RowsT: ...
@operator(per="row")
def compute_reward(prompts: c.RowPrompts, responses: c.Responses, ground_truth: c.GroundTruth) -> c.TokenLevelScores: ...
@operator(per="row")
def scores_as_rewards(token_level_scores: c.TokenLevelScores) -> c.TokenLevelRewards: ...
@operator(per="row")
def apply_kl_penalty(scores: c.TokenLevelScores, old_log_probs: c.OldLogProbs, ref_log_prob: c.RefLogProb) -> c.TokenLevelRewards: ...
@operator(per="batch")
def gae(token_level_rewards: c.TokenLevelRewards, values: c.Values, response_mask: c.ResponseMask) -> c.Estimated: ...
@operator(per="group")
def grpo(token_level_rewards: c.TokenLevelRewards, response_mask: c.ResponseMask, uid: c.Uid) -> c.Estimated: ...
@operator(per="group")
def optimal_token_baseline(
    token_level_rewards: c.TokenLevelRewards, response_mask: c.ResponseMask, uid: c.Uid, old_log_probs: c.OldLogProbs
) -> c.Estimated: ...
@operator(per="row")
def attention_tail(responses: c.Responses, attention_mask: c.AttentionMask) -> c.AttentionTail: ...
@operator(per="batch", rows="permute")
def balance_batch(rows: RowsT) -> RowsT: ...
@operator(per="batch", rows="shard")
def dispatch_dp(rows: RowsT, *, on: Worker, mini_batches: int) -> RowsT: ...
@operator(per="row", rows="pack")
def micro_batches(rows: RowsT, *, ppo_max_token_len: int) -> Micro[RowsT]: ...
@operator(per="batch", serves="rollout")
def update_weights(weights: Next[W], rollout: Worker) -> Next[W]: ...


class Rollout(Worker):
    @operator(per="row", sizes={R: fresh()})
    def generate_sequences(self, policy: Served[c.Policy], batch: c.Repeated) -> c.Generated: ...


class Actor(Worker):
    @operator(per="run")
    def load(self) -> Frozen[c.Policy]: ...
    @operator(per="row")
    def compute_log_prob(
        self, policy: Weights[c.Policy], responses: c.Responses, input_ids: c.InputIds, attention_mask: c.AttentionMask
    ) -> c.LogProbs: ...
    @operator(per="micro")
    def update_actor(self, policy: Move[c.Policy], objective: Objective[c.ActorForward, ColumnsT]) -> Next[c.Policy]: ...


class Critic(Worker):
    @operator(per="run")
    def load(self) -> Frozen[c.Critic]: ...
    @operator(per="row")
    def compute_values(
        self, critic: Weights[c.Critic], responses: c.Responses, input_ids: c.InputIds, attention_mask: c.AttentionMask
    ) -> c.Values: ...
    @operator(per="micro")
    def update_critic(self, critic: Move[c.Critic], objective: Objective[c.CriticForward, ColumnsT]) -> Next[c.Critic]: ...


class VanillaLoss(Loss[c.ActorForward, c.PpoColumns]):
    def __call__(self, forward: c.ActorForward, rows: c.PpoColumns) -> Tensor: ...


class BypassLoss(Loss[c.ActorForward, c.BypassColumns]):  # its ratio is against the log-probs of the rollout itself
    @property
    def corrects(self) -> tuple[Literal["engine", "version"], ...]:
        return ("engine", "version")

    def __call__(self, forward: c.ActorForward, rows: c.BypassColumns) -> Tensor: ...


class KlLoss(Loss[c.ActorForward, c.KlColumns]):
    def __call__(self, forward: c.ActorForward, rows: c.KlColumns) -> Tensor: ...


class ValueLoss(Loss[c.CriticForward, c.CriticColumns]):
    def __call__(self, forward: c.CriticForward, rows: c.CriticColumns) -> Tensor: ...


OUTCOME: dict[str, Callable[..., c.Estimated]] = {"grpo": grpo, "optimal_token_baseline": optimal_token_baseline}


@pipeline
def verl_ppo(
    train_files: str = "train.parquet", train_batch_size: int = 1024, n: int = 8, dp: int = 8, mini_batches: int = 4,
    adv_estimator: Literal["gae", "grpo", "optimal_token_baseline"] = "gae", policy_loss: Literal["vanilla", "bypass"] = "vanilla",
    use_kl_in_reward: bool = False, use_kl_loss: bool = False, reference: bool = True, calculate_log_probs: bool = False,
    old_log_prob: bool = True, response_mask: bool = True, response_mask_selected: bool = True, advantages: bool = True,
) -> None:  # fmt: skip
    actor, rollout = Actor("actor", dp=dp), Rollout("rollout")
    policy = Feedback("policy", init=actor.load())

    sequences = rollout.generate_sequences(policy.served, repeat(train_dataloader(train_files), n=n))
    batch = global_batch(sequences, prompts=train_batch_size)
    rollout_log_probs = batch.rollout_log_probs if calculate_log_probs else absent("calculate_log_probs is off")
    mask = batch.response_mask if response_mask else absent("response_mask is off")
    scores = compute_reward(batch.prompts, batch.responses, batch.ground_truth)

    old = absent("old_log_prob is off")
    if old_log_prob:
        old = actor.compute_log_prob(policy.current, batch.responses, batch.input_ids, batch.attention_mask)
    ref = absent("reference is off")
    if reference:
        frozen = Actor("ref", dp=dp)
        ref = frozen.compute_log_prob(frozen.load(), batch.responses, batch.input_ids, batch.attention_mask)
    rewards = apply_kl_penalty(scores, old, ref) if use_kl_in_reward else scores_as_rewards(scores)

    values = absent("adv_estimator is not gae")
    if adv_estimator == "gae":
        critic = Critic("critic", dp=dp)
        baseline = Feedback("critic", init=critic.load())
        values = critic.compute_values(baseline.current, batch.responses, batch.input_ids, batch.attention_mask)
        estimated = gae(rewards, values, mask)
    else:
        estimated = OUTCOME[adv_estimator](rewards, mask, batch.uid)  # the same arguments for all of them

    columns = c.Columns(
        responses=batch.responses, input_ids=batch.input_ids, attention_mask=batch.attention_mask,
        response_mask=mask if response_mask_selected else attention_tail(batch.responses, batch.attention_mask),
        old_log_probs=old, rollout_log_probs=rollout_log_probs, ref_log_prob=ref, values=values, returns=estimated.returns,
        advantages=estimated.advantages if advantages else absent("advantages is off"),
    )  # fmt: skip
    columns = balance_batch(columns)
    if adv_estimator == "gae":
        for_critic = micro_batches(dispatch_dp(columns, on=critic, mini_batches=mini_batches), ppo_max_token_len=32_768)
        baseline.close(critic.update_critic(baseline.move, for_critic.loss(ValueLoss())))
    for_actor = micro_batches(dispatch_dp(columns, on=actor, mini_batches=mini_batches), ppo_max_token_len=32_768)
    loss: VanillaLoss | BypassLoss = VanillaLoss() if policy_loss == "vanilla" else BypassLoss()
    objective = for_actor.loss(loss, KlLoss()) if use_kl_loss else for_actor.loss(loss)
    policy.close(update_weights(actor.update_actor(policy.move, objective), rollout))
