"""The columns of verl's batch, and which travel together. Prompts are padded on the left, responses on the right.

P prompts   N answers a prompt   B rows   Q tokens of a prompt   R tokens of a response
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from rlflow import Record, Tensor, dims, f32, flag, i64, roles, text

P, N, B, Q, R = dims("P N B Q R")
advantage, group, log_prob, mask, returns, reward, tokens, truth, value = roles(
    "advantage group log_prob mask returns reward tokens truth value"
)

PromptIds: TypeAlias = Annotated[Tensor, i64[P, Q], tokens("prompt")]
PromptTruth: TypeAlias = Annotated[list[str], text[P], truth]
RowPrompts: TypeAlias = Annotated[Tensor, i64[B, Q], tokens("prompt")]
GroundTruth: TypeAlias = Annotated[list[str], text[B], truth]
Uid: TypeAlias = Annotated[list[str], text[B], group]
Responses: TypeAlias = Annotated[Tensor, i64[B, R], tokens("response")]
InputIds: TypeAlias = Annotated[Tensor, i64[B, Q + R], tokens("both")]
AttentionMask: TypeAlias = Annotated[Tensor, flag[B, Q + R], mask("attention")]
AttentionTail: TypeAlias = Annotated[Tensor, flag[B, R], mask("attention")]  # its last R positions: 1 on a tool's tokens too
ResponseMask: TypeAlias = Annotated[Tensor, flag[B, R], mask("response")]
LogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob]
RolloutLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("served")]
OldLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("current")]
RefLogProb: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("frozen")]
TokenLevelScores: TypeAlias = Annotated[Tensor, f32[B, R], reward("raw")]
TokenLevelRewards: TypeAlias = Annotated[Tensor, f32[B, R], reward("shaped")]
Values: TypeAlias = Annotated[Tensor, f32[B, R], value]
Advantages: TypeAlias = Annotated[Tensor, f32[B, R], advantage]
Returns: TypeAlias = Annotated[Tensor, f32[B, R], returns]


class Policy:
    """What is trained and samples."""


class Critic:
    """What values tokens."""


class Prompts(Record):
    prompts: PromptIds
    ground_truth: PromptTruth


class Repeated(Record):
    prompts: RowPrompts
    ground_truth: GroundTruth
    uid: Uid


class Generated(Repeated):
    responses: Responses
    input_ids: InputIds
    attention_mask: AttentionMask
    response_mask: ResponseMask
    rollout_log_probs: RolloutLogProbs


class Estimated(Record):
    advantages: Advantages
    returns: Returns


class ModelColumns(Record):
    responses: Responses
    input_ids: InputIds
    attention_mask: AttentionMask
    response_mask: ResponseMask


class PpoColumns(ModelColumns):
    old_log_probs: OldLogProbs
    advantages: Advantages


class BypassColumns(ModelColumns):
    rollout_log_probs: RolloutLogProbs
    advantages: Advantages


class KlColumns(ModelColumns):
    ref_log_prob: RefLogProb


class CriticColumns(ModelColumns):
    values: Values
    returns: Returns


class Columns(PpoColumns, BypassColumns, KlColumns, CriticColumns):
    """All that the updates of actor and critic may select."""


class ActorForward(Record):
    log_probs: LogProbs


class CriticForward(Record):
    vpreds: Values
