# mypy: disable-error-code="empty-body"
"""NeMo-RL's GRPO loop: its hops, and the names in its training data, as its documentation gives them. To be checked, not to be run.

data → repeat_interleave → rollout → baseline and std → advantages → prev_logprobs, reference_policy_logprobs → train
                             ↑                                                                                   │
                             └───────────────────── refit: weights to the generation, version + 1 ───────────────┘

Which log-probs are computed is decided by rules in one function, and who reads them in another:

flag                                                       what happened to users                                             code
--no-report-truncated                                      D22: KeyError 'truncated': overlong filtering was on               RLF008
--skip-prev-logprobs                                       V18: the clipped loss lost what its ratio is taken against         RLF008
--skip-prev-logprobs --force-on-policy-ratio
    --importance-sampling-correction                       V18: the loss needs none, so they are skipped; the weights do      RLF008
--skip-reference-policy-logprobs                           V18: the KL penalty lost its reference                             RLF008
--max-trajectory-age-steps 1                               a lagging rollout trained on as if it were on-policy               RLF307

`--skip-prev-logprobs --force-on-policy-ratio` is fine: then nothing reads prev_logprobs.
"""

from typing import Annotated, TypeVar

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

from . import nemo_columns as c
from .nemo_columns import B, N, P, S

W = TypeVar("W")
DataT = TypeVar("DataT", bound=c.OnPolicyData)


class ClippedPGLoss(Loss[c.Forward, c.ClippedPGData]):
    def __call__(self, forward: c.Forward, rows: c.ClippedPGData) -> Tensor: ...


class OnPolicyLoss(Loss[c.Forward, c.OnPolicyData]):  # force_on_policy_ratio: its ratio is against itself
    def __call__(self, forward: c.Forward, rows: c.OnPolicyData) -> Tensor: ...


class KlPenalty(Loss[c.Forward, c.KlData]):
    beta: float

    @property
    def active(self) -> bool:
        return self.beta > 0

    def __call__(self, forward: c.Forward, rows: c.KlData) -> Tensor: ...


@operator(per="row", sizes={P: fresh()})
def dataloader(path: str) -> c.Prompts: ...
@operator(per="row", rows="expand", sizes={B: P * N})
def repeat_interleave(batch: c.Prompts, *, num_generations: Annotated[int, N]) -> c.Repeated: ...
@operator(per="group", rows="form")
def global_batch(rows: RowsT, *, prompts: int) -> RowsT: ...
@operator(per="group")
def baseline_and_std_per_prompt(idx: c.Idx, total_reward: c.TotalReward) -> c.Compared: ...
@operator(per="row")
def normalized_advantages(total_reward: c.TotalReward, baseline: c.Baseline, std: c.Std, token_mask: c.TokenMask) -> c.Advantages: ...
@operator(per="row")
def sample_mask_of(loss_multiplier: c.LossMultiplier) -> c.SampleMask: ...
@operator(per="row")
def overlong_filtering(loss_multiplier: c.LossMultiplier, truncated: c.Truncated) -> c.SampleMask: ...
@operator(per="row", corrects=("version", "engine"))
def importance_sampling_weights(
    advantages: c.Advantages, prev_logprobs: c.PrevLogProbs, generation_logprobs: c.GenerationLogProbs
) -> c.Advantages: ...
@operator(per="batch", rows="shard")
def shard_by_batch_size(rows: RowsT, *, on: Worker) -> RowsT: ...
@operator(per="row", rows="pack")
def dynamic_batching(rows: RowsT, *, train_mb_tokens: int) -> Micro[RowsT]: ...
@operator(per="batch", serves="generation")
def refit(weights: Next[W], generation: Worker) -> Next[W]: ...


class Generation(Worker):
    @operator(per="row", sizes={S: fresh()})
    def run_multi_turn_rollout(self, policy: Served[c.Policy], batch: c.Repeated, *, max_rollout_turns: int) -> c.RolledOut: ...


class PolicyWorker(Worker):
    @operator(per="run")
    def load(self) -> Frozen[c.Policy]: ...
    @operator(per="row")
    def get_logprobs(self, policy: Weights[c.Policy], input_ids: c.InputIds, input_lengths: c.InputLengths) -> c.LogProbs: ...
    @operator(per="micro")
    def train(self, policy: Move[c.Policy], objective: Objective[c.Forward, DataT]) -> Next[c.Policy]: ...


@pipeline
def nemo_grpo(
    path: str = "train.jsonl", num_prompts_per_step: int = 32, num_generations_per_prompt: int = 16, max_rollout_turns: int = 1,
    dp: int = 8, reference_policy_kl_penalty: float = 0.01, max_trajectory_age_steps: int = 0, importance_sampling_correction: bool = False,
    force_on_policy_ratio: bool = False, skip_prev_logprobs: bool = False, skip_reference_policy_logprobs: bool = False,
    overlong: bool = True, report_truncated: bool = True,
) -> None:  # fmt: skip
    worker, generation = PolicyWorker("policy", dp=dp), Generation("generation")
    policy = Feedback("policy", init=worker.load(), max_lag=max_trajectory_age_steps)

    repeated = repeat_interleave(dataloader(path), num_generations=num_generations_per_prompt)
    rolled_out = generation.run_multi_turn_rollout(policy.served, repeated, max_rollout_turns=max_rollout_turns)
    batch = global_batch(rolled_out, prompts=num_prompts_per_step)
    truncated = batch.truncated if report_truncated else absent("this rollout does not report it")
    sample_mask = overlong_filtering(batch.loss_multiplier, truncated) if overlong else sample_mask_of(batch.loss_multiplier)

    prev, reference = absent("skip_prev_logprobs"), absent("skip_reference_policy_logprobs")
    if not skip_prev_logprobs:
        prev = worker.get_logprobs(policy.current, batch.input_ids, batch.input_lengths)
    if not skip_reference_policy_logprobs:
        frozen = PolicyWorker("reference", dp=dp)
        reference = frozen.get_logprobs(frozen.load(), batch.input_ids, batch.input_lengths)

    compared = baseline_and_std_per_prompt(batch.idx, batch.total_reward)
    advantages = normalized_advantages(batch.total_reward, compared.baseline, compared.std, batch.token_mask)
    if importance_sampling_correction:
        advantages = importance_sampling_weights(advantages, prev, batch.generation_logprobs)

    data = c.TrainData(
        input_ids=batch.input_ids, input_lengths=batch.input_lengths, token_mask=batch.token_mask, sample_mask=sample_mask,
        advantages=advantages, prev_logprobs=prev, reference_policy_logprobs=reference,
    )  # fmt: skip
    micro = dynamic_batching(shard_by_batch_size(data, on=worker), train_mb_tokens=32_768)
    loss: ClippedPGLoss | OnPolicyLoss = OnPolicyLoss() if force_on_policy_ratio else ClippedPGLoss()
    trained = worker.train(policy.move, micro.loss(loss, KlPenalty(reference_policy_kl_penalty)))
    policy.close(refit(trained, generation))
