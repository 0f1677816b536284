"""The fields of NeMo-RL's GRPO training data, and which travel together. Log-probs and token masks stand at the tokens themselves.

P prompts   N generations a prompt   B samples   S tokens of a sample
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from rlflow import Record, Tensor, dims, f32, flag, i64, roles, text

P, N, B, S = dims("P N B S")
advantage, count, group, log_prob, mask, messages, reward, tokens = roles("advantage count group log_prob mask messages reward tokens")
PromptMessages: TypeAlias = Annotated[list[str], text[P], messages]
PromptIdx: TypeAlias = Annotated[Tensor, i64[P], group]
MessageLog: TypeAlias = Annotated[list[str], text[B], messages]
Idx: TypeAlias = Annotated[Tensor, i64[B], group]
InputIds: TypeAlias = Annotated[Tensor, i64[B, S], tokens]
InputLengths: TypeAlias = Annotated[Tensor, i64[B], count]
TokenMask: TypeAlias = Annotated[Tensor, flag[B, S], mask("response")]
LossMultiplier: TypeAlias = Annotated[Tensor, f32[B], mask("data")]
SampleMask: TypeAlias = Annotated[Tensor, f32[B], mask("sample")]
Truncated: TypeAlias = Annotated[Tensor, flag[B], mask("truncated")]
TotalReward: TypeAlias = Annotated[Tensor, f32[B], reward("raw")]
Baseline: TypeAlias = Annotated[Tensor, f32[B], reward("baseline")]
Std: TypeAlias = Annotated[Tensor, f32[B], reward("std")]
Advantages: TypeAlias = Annotated[Tensor, f32[B, S], advantage]
LogProbs: TypeAlias = Annotated[Tensor, f32[B, S], log_prob]
GenerationLogProbs: TypeAlias = Annotated[Tensor, f32[B, S], log_prob("served")]
PrevLogProbs: TypeAlias = Annotated[Tensor, f32[B, S], log_prob("current")]
ReferencePolicyLogProbs: TypeAlias = Annotated[Tensor, f32[B, S], log_prob("frozen")]


class Policy:
    """What is trained and generates."""


class Prompts(Record):
    message_log: PromptMessages
    idx: PromptIdx


class Repeated(Record):
    message_log: MessageLog
    idx: Idx


class RolledOut(Repeated):
    input_ids: InputIds
    input_lengths: InputLengths
    token_mask: TokenMask
    generation_logprobs: GenerationLogProbs
    total_reward: TotalReward
    loss_multiplier: LossMultiplier
    truncated: Truncated


class Compared(Record):
    baseline: Baseline
    std: Std


class OnPolicyData(Record):
    input_ids: InputIds
    input_lengths: InputLengths
    token_mask: TokenMask
    sample_mask: SampleMask
    advantages: Advantages


class ClippedPGData(OnPolicyData):
    prev_logprobs: PrevLogProbs


class KlData(OnPolicyData):
    reference_policy_logprobs: ReferencePolicyLogProbs


class TrainData(ClippedPGData, KlData):
    """What the policy's train call is given."""


class Forward(Record):
    curr_logprobs: LogProbs
