"""The records that hops hand on: which fields travel together."""

from __future__ import annotations

from rlflow import Record, Tensor

from .fields import (
    Advantages,
    Answer,
    AttentionMask,
    EpisodeReward,
    InputIds,
    IsCorrect,
    IsPad,
    IsTruncated,
    Leaf,
    LogProbs,
    OldLogProbs,
    PositionIds,
    PromptAnswer,
    PromptIds,
    PromptTemplate,
    PromptUid,
    RefLogProbs,
    ResponseMask,
    Responses,
    ResponseText,
    Returns,
    RolloutLogProbs,
    StepRewards,
    StepStates,
    TeacherLogProbs,
    TokenScores,
    TokenVersions,
    TrajectoryAnswer,
    TrajectoryIds,
    TrajectoryNumber,
    TrajectoryUid,
    TrajUid,
    Uid,
    Values,
    VersionTag,
)


class Prompts(Record):
    """One row a prompt of the data set."""

    prompt_ids: PromptIds
    uid: PromptUid
    answer: PromptAnswer
    template: PromptTemplate


class Trajectories(Record):
    """One row a trajectory to sample; `n` rows share a uid."""

    prompt_ids: TrajectoryIds
    uid: TrajectoryUid
    traj_uid: TrajectoryNumber
    answer: TrajectoryAnswer


class Sample(Record):
    """One row a leaf: what was sampled, and by which weights.

    input_ids:          [S, U1, A1, U2, A2, PAD...]
    responses:          [   U1, A1, U2, A2, PAD...]   = input_ids[1:]
    response_mask:      [   0,  1,  0,  1,  0  ...]   1 only on the model's own tokens
    rollout_log_probs:  [   0,  lp, 0,  lp, 0  ...]
    """

    input_ids: InputIds
    attention_mask: AttentionMask
    position_ids: PositionIds
    responses: Responses
    response_mask: ResponseMask
    rollout_log_probs: RolloutLogProbs
    token_versions: TokenVersions
    uid: Uid
    traj_uid: TrajUid
    leaf: Leaf
    version_tag: VersionTag
    is_pad: IsPad
    is_truncated: IsTruncated
    response_text: ResponseText
    answer: Answer


class EpisodeSample(Sample):
    """A sample of episodes: what the environment gave on the way to each leaf, too, and at which turn, and where each turn began."""

    episode_reward: EpisodeReward
    step_rewards: StepRewards
    step_states: StepStates


class Scores(Record):
    """What a verifier says: a score at the last trained token (0 elsewhere) and right or wrong."""

    token_level_scores: TokenScores
    is_correct: IsCorrect


class Advantage(Record):
    """What an estimator yields, zero outside the response mask."""

    advantages: Advantages
    returns: Returns


class ModelRows(Record):
    """What a training forward reads."""

    input_ids: InputIds
    position_ids: PositionIds
    response_mask: ResponseMask
    is_pad: IsPad


class PolicyForward(Record):
    """What the policy's training forward yields. entropy: f32[B, R], nats.

    Of a mixture of experts: router_logits, f32[B, R, experts] a layer that has them, and to how many experts a token goes.
    """

    log_probs: LogProbs
    entropy: Tensor
    router_logits: tuple[Tensor, ...] = ()
    experts_per_token: int = 0


class CriticForward(Record):
    """What the critic's training forward yields."""

    values: Values


class PolicyRows(Record):
    """What every policy loss reads: one without a ratio reads nothing else."""

    advantages: Advantages
    response_mask: ResponseMask


class PpoRows(PolicyRows):
    """What the losses of the ratio of new and old policy read."""

    old_log_probs: OldLogProbs


class ToprRows(PolicyRows):
    """What a loss reads that weighs by what sampled the row."""

    rollout_log_probs: RolloutLogProbs


class TreeRows(Record):
    """Whose row it is: what losses weigh rows by, where a trajectory may have several."""

    uid: Uid
    traj_uid: TrajUid


class CovarianceRows(PpoRows, TreeRows):
    """What the losses read that choose single tokens of the mini-batch: with its position, uid, traj_uid and leaf name a token."""

    leaf: Leaf


class TeacherRows(Record):
    """What distillation reads: log-probs of the sampled tokens by the model that is learned from."""

    teacher_log_probs: TeacherLogProbs
    response_mask: ResponseMask


class KlRows(Record):
    """What the KL penalty against a reference reads."""

    ref_log_probs: RefLogProbs
    response_mask: ResponseMask


class ValueRows(Record):
    """What the value loss reads. `values` are those of the critic before the update."""

    values: Values
    returns: Returns
    response_mask: ResponseMask
