"""A small catalogue for the programs of this folder: declarations only, so that messages do not move with the real one.

    P prompts   T trajectories   B leaf rows   G trajectories a prompt   Q prompt tokens   S tokens of a row   R next-token positions
"""
from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

from rlflow import (
    Current, Difference, Frozen, Loss, Micro, Move, Next, Objective, Record, RowsT, Served, Tensor, Weights, Worker, count, dims, f32, flag, fresh, i32, i64, operator, roles, text,
)

P, T, B, G, Q, S = dims("P T B G Q S")
R = S - 1
advantage, answer, group, log_prob, mask, member, response, returns, reward, tokens, value = roles(
    "advantage answer group log_prob mask member response returns reward tokens value"
)


class Policy: ...


class Critic: ...


PromptIds: TypeAlias = Annotated[Tensor, i64[P, Q], tokens]
PromptUid: TypeAlias = Annotated[Tensor, i64[P], group]
PromptAnswer: TypeAlias = Annotated[list[str], text[P], answer]
TrajectoryIds: TypeAlias = Annotated[Tensor, i64[T, Q], tokens]
TrajectoryUid: TypeAlias = Annotated[Tensor, i64[T], group]
TrajectoryAnswer: TypeAlias = Annotated[list[str], text[T], answer]
InputIds: TypeAlias = Annotated[Tensor, i64[B, S], tokens]
ResponseMask: TypeAlias = Annotated[Tensor, flag[B, R], mask("response")]
LogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob]
RolloutLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("served")]
OldLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("current")]
RefLogProbs: TypeAlias = Annotated[Tensor, f32[B, R], log_prob("frozen")]
TokenScores: TypeAlias = Annotated[Tensor, f32[B, R], reward("raw")]
TokenRewards: TypeAlias = Annotated[Tensor, f32[B, R], reward("shaped")]
Advantages: TypeAlias = Annotated[Tensor, f32[B, R], advantage]
Returns: TypeAlias = Annotated[Tensor, f32[B, R], returns]
Values: TypeAlias = Annotated[Tensor, f32[B, R], value]
IsCorrect: TypeAlias = Annotated[Tensor, f32[B], reward("raw")]
Uid: TypeAlias = Annotated[Tensor, i64[B], group]
TrajUid: TypeAlias = Annotated[Tensor, i64[B], member("trajectory")]
ResponseText: TypeAlias = Annotated[list[str], text[B], response]
Answer: TypeAlias = Annotated[list[str], text[B], answer]


class Prompts(Record):
    prompt_ids: PromptIds
    uid: PromptUid
    answer: PromptAnswer


class Trajectories(Record):
    prompt_ids: TrajectoryIds
    uid: TrajectoryUid
    answer: TrajectoryAnswer


class Sample(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    rollout_log_probs: RolloutLogProbs
    uid: Uid
    response_text: ResponseText
    answer: Answer


class Leaves(Sample):
    traj_uid: TrajUid


class Scores(Record):
    token_level_scores: TokenScores
    is_correct: IsCorrect


class Advantage(Record):
    advantages: Advantages
    returns: Returns


class ModelRows(Record):
    input_ids: InputIds
    response_mask: ResponseMask


class PpoRows(Record):
    old_log_probs: OldLogProbs
    advantages: Advantages
    response_mask: ResponseMask


class KlRows(Record):
    ref_log_probs: RefLogProbs
    response_mask: ResponseMask


class TrainRows(ModelRows, PpoRows):
    """What the forward and the loss read."""


class KlTrainRows(TrainRows, KlRows):
    """The same, with a penalty against a reference."""


class PolicyForward(Record):
    log_probs: LogProbs


ModelRowsT = TypeVar("ModelRowsT", bound=ModelRows)
W = TypeVar("W")


# --- from the data set to one batch -------------------------------------------------------------------------------------
@operator(per="row", sizes={P: fresh(), Q: fresh()})
def dataset(path: str) -> Prompts: ...  # type: ignore[empty-body]


@operator(per="row", rows="expand", sizes={T: P * G})
def dispatch(prompts: Prompts, *, n: Annotated[int, G, count("trajectories a prompt")]) -> Trajectories: ...  # type: ignore[empty-body]


@operator(per="group", rows="form")
def form_batch(rows: RowsT, *, prompts: Annotated[int, count("prompts")]) -> RowsT: ...  # type: ignore[empty-body]


# --- rewards and estimators -----------------------------------------------------------------------------------------------
@operator(per="row")
def exact_match(response_text: ResponseText, answer: Answer, response_mask: ResponseMask) -> Scores: ...  # type: ignore[empty-body]


@operator(per="row")
def shaping(token_level_scores: TokenScores) -> TokenRewards: ...  # type: ignore[empty-body]


@operator(per="row")
def length_penalty(token_level_rewards: TokenRewards, response_mask: ResponseMask, *, limit: int) -> TokenRewards: ...  # type: ignore[empty-body]


@operator(per="group", least_group=2)
def grpo(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None = None) -> Advantage: ...  # type: ignore[empty-body]


@operator(per="group", least_group=2)
def rloo(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None = None) -> Advantage: ...  # type: ignore[empty-body]


@operator(per="row")
def gae(token_level_rewards: TokenRewards, values: Values, response_mask: ResponseMask, *, lam: float = 1.0) -> Advantage: ...  # type: ignore[empty-body]


@operator(per="row", corrects=("version", "engine"))
def truncated_importance(  # type: ignore[empty-body]
    advantages: Advantages, old_log_probs: OldLogProbs, rollout_log_probs: RolloutLogProbs, response_mask: ResponseMask
) -> Advantages: ...


@operator(per="row", corrects=("version", "engine"))
def anchor_on_rollout(rollout_log_probs: RolloutLogProbs) -> OldLogProbs: ...  # type: ignore[empty-body]


# --- row operators ----------------------------------------------------------------------------------------------------------
@operator(per="group", rows="filter", least_group=2)
def keep_mixed(rows: RowsT, token_level_scores: TokenScores) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="batch", rows="pad")
def pad(rows: RowsT, *, multiple: int) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="batch", rows="permute")
def rebalance(rows: RowsT, *, pieces: Annotated[int, count("ranks")], mini_batches: int = 1) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="batch", rows="shard")
def shard(rows: RowsT, *, on: Worker, mini_batches: int = 1) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="row", rows="pack")
def micro_pack(rows: RowsT, *, max_tokens: int) -> Micro[RowsT]: ...  # type: ignore[empty-body]


# --- workers ----------------------------------------------------------------------------------------------------------------
class Embedded(Worker):
    @operator(per="row", sizes={B: T, S: fresh()})
    def rollout(self, policy: Served[Policy], prompts: Trajectories) -> Sample: ...  # type: ignore[empty-body]

    @operator(per="row", sizes={B: fresh(), S: fresh()})
    def rollout_tree(self, policy: Served[Policy], prompts: Trajectories, *, max_turns: int = 8) -> Leaves: ...  # type: ignore[empty-body]

    @operator(per="row", sink=True)
    def evaluate(self, policy: Served[Policy], prompts: Prompts) -> dict[str, float]: ...  # type: ignore[empty-body]


class Torch(Worker):
    @operator(per="run")
    def load(self) -> Frozen[Policy]: ...  # type: ignore[empty-body]

    @operator(per="row")
    def log_probs(self, weights: Weights[Policy], input_ids: InputIds, response_mask: ResponseMask) -> LogProbs: ...  # type: ignore[empty-body]

    @operator(per="micro")
    def train(self, weights: Move[Policy], objective: Objective[PolicyForward, ModelRowsT]) -> Next[Policy]: ...  # type: ignore[empty-body]


class TorchCritic(Worker):
    @operator(per="run")
    def load(self) -> Frozen[Critic]: ...  # type: ignore[empty-body]

    @operator(per="row")
    def values(self, weights: Weights[Critic], input_ids: InputIds, response_mask: ResponseMask) -> Values: ...  # type: ignore[empty-body]


@operator(per="batch", serves="engine")
def sync(weights: Next[W], engine: Worker) -> Next[W]: ...  # type: ignore[empty-body]


# --- losses -----------------------------------------------------------------------------------------------------------------
class ppo_clip(Loss[PolicyForward, PpoRows]):
    clip: float = 0.2


class kl_penalty(Loss[PolicyForward, KlRows]):
    beta: float = 0.0

    @property
    def active(self) -> bool:
        return self.beta > 0


class imitate(Loss[PolicyForward, ModelRows]):
    @property
    def corrects(self) -> tuple[Difference, ...]:
        return ("version", "policy")  # whoever said it: it is what should be said


# --- which weights sampled a token --------------------------------------------------------------------------------------------
TokenVersions: TypeAlias = Annotated[Tensor, i32[B, R], member("token_version")]


class Versioned(Sample):
    token_versions: TokenVersions


class VersionedEngine(Embedded):
    @operator(per="row", sizes={B: T, S: fresh()})
    def rollout_versioned(self, policy: Served[Policy], prompts: Trajectories) -> Versioned: ...  # type: ignore[empty-body]


@operator(per="row", corrects=("stale",))
def mask_stale(policy: Current[Policy], response_mask: ResponseMask, token_versions: TokenVersions) -> ResponseMask: ...  # type: ignore[empty-body]


# --- what takes groups apart -----------------------------------------------------------------------------------------------
@operator(per="group", rows="filter", least_kept=2)
def keep_ended(rows: RowsT, response_mask: ResponseMask) -> RowsT: ...  # type: ignore[empty-body]
