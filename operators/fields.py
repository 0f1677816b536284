"""The vocabulary of the loop, one line a field. Every operator's signature is made of these aliases.

    P prompts   T trajectories   B leaf rows   G trajectories a prompt   Q prompt tokens   S tokens of a row   R next-token positions

The first axis is always the row axis. Position t of an `R` field speaks about token t + 1 of `input_ids`: `responses = input_ids[:, 1:]`.
`log_prob(x)`: x is the reading of the weights that scored it (served | current | frozen), or whose they are (teacher).
A reward is raw (as judged), shaped (as trained), or of an episode or a step of it (as its environment gave it).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from rlflow import Tensor, count, dims, f32, flag, i32, i64, roles, text

P, T, B, G, Q, S = dims("P T B G Q S")
R = S - 1
advantage, answer, group, log_prob, mask, member, position, response, returns, reward, template, tokens, truncated, value = roles(
    "advantage answer group log_prob mask member position response returns reward template tokens truncated value"
)


class Policy:
    """A language model that samples."""


class Teacher:
    """A language model that is learned from: its weights never change, and it is no reference for what is trained."""


class Critic:
    """A model that yields one value a token."""


# --- numbers: what an integer parameter counts ----------------------------------------------------------------------------------------
PromptCount: TypeAlias = Annotated[int, count("prompts")]
GroupSize: TypeAlias = Annotated[int, G, count("trajectories a prompt")]
TrajectoryCount: TypeAlias = Annotated[int, count("trajectories")]
TokenCount: TypeAlias = Annotated[int, count("tokens")]
RankCount: TypeAlias = Annotated[int, count("ranks")]  # data-parallel ones: they alone cut rows

# --- prompts [P] and the trajectories asked for [T] -----------------------------------------------------------------------------------
PromptIds: TypeAlias = Annotated[Tensor, i64[P, Q], tokens]
PromptUid: TypeAlias = Annotated[Tensor, i64[P], group]
PromptAnswer: TypeAlias = Annotated[list[str], text[P], answer]
PromptTemplate: TypeAlias = Annotated[list[str], text[P], template]  # the question with its operands left out
TrajectoryIds: TypeAlias = Annotated[Tensor, i64[T, Q], tokens]
TrajectoryUid: TypeAlias = Annotated[Tensor, i64[T], group]
TrajectoryNumber: TypeAlias = Annotated[Tensor, i64[T], member("trajectory")]  # 0 .. n - 1 within its uid
TrajectoryAnswer: TypeAlias = Annotated[list[str], text[T], answer]

# --- rows: who they are [B] -----------------------------------------------------------------------------------------------------------
Uid: TypeAlias = Annotated[Tensor, i64[B], group]
TrajUid: TypeAlias = Annotated[Tensor, i64[B], member("trajectory")]
Leaf: TypeAlias = Annotated[Tensor, i64[B], member("leaf")]
VersionTag: TypeAlias = Annotated[Tensor, i64[B], member("version")]  # published version when the trajectory was registered
IsPad: TypeAlias = Annotated[Tensor, flag[B], mask("pad")]
IsTruncated: TypeAlias = Annotated[Tensor, flag[B], truncated]  # a bound ended it: of tokens or context in its last turn, or of its turns

# --- rows: tokens [B, S] and next-token positions [B, R] ------------------------------------------------------------------------------
InputIds: TypeAlias = Annotated[Tensor, i64[B, S], tokens]
AttentionMask: TypeAlias = Annotated[Tensor, flag[B, S], mask("attention")]
PositionIds: TypeAlias = Annotated[Tensor, i64[B, S], position]
Responses: TypeAlias = Annotated[Tensor, i64[B, R], tokens]
ResponseMask: TypeAlias = Annotated[Tensor, flag[B, R], mask("response")]
LogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob]
TokenVersions: TypeAlias = Annotated[Tensor, i32[B, R], member("token_version")]  # of what sampled a trained token, else -1
StepStates: TypeAlias = Annotated[Tensor, i64[B, R], member("state")]  # of the environment when a trained token's turn began, else 0
StepRewards: TypeAlias = Annotated[Tensor, f32[B, R], reward("step")]  # what its environment gave a turn, at its last trained token, else 0
RolloutLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("served")]
OldLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("current")]
RefLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("frozen")]
TeacherLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("teacher")]
TokenScores: TypeAlias = Annotated[Tensor, f32[B, R], reward("raw")]
TokenRewards: TypeAlias = Annotated[Tensor, f32[B, R], reward("shaped")]
Advantages: TypeAlias = Annotated[Tensor, f32[B, R], advantage]
Returns: TypeAlias = Annotated[Tensor, f32[B, R], returns]
Values: TypeAlias = Annotated[Tensor, f32[B, R], value]
IsCorrect: TypeAlias = Annotated[Tensor, f32[B], reward("raw")]
RewardBaselines: TypeAlias = Annotated[Tensor, f32[B], reward("shaped")]  # of another answer to the same prompt, as the greedy one
EpisodeReward: TypeAlias = Annotated[Tensor, f32[B], reward("episode")]  # Σ over the steps of its environment

# --- rows: text [B] -------------------------------------------------------------------------------------------------------------------
ResponseText: TypeAlias = Annotated[list[str], text[B], response]
Answer: TypeAlias = Annotated[list[str], text[B], answer]
