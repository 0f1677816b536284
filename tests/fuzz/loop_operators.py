"""Operators that a user might add, with fields of their own: the generated loops mix them with the catalogue's.

    row       fluency  length_of  add_quality  token_weights  weigh  dense_scores  shift  merge_scores
    group     rank_quality  rank_advantage  keep_good (a filter)        batch   whiten  shuffle (a permutation)
    prompts   drop_easy (a filter before dispatch)                      sink    report
    workers   Judge (a second kind of model)
    loss      distill

Declarations only: what they would compute does not matter to the compiler.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from typing import Annotated, TypeAlias

from operators.fields import (
    Advantages,
    Answer,
    AttentionMask,
    B,
    InputIds,
    LogProbs,
    PromptTemplate,
    R,
    RefLogProbs,
    ResponseMask,
    ResponseText,
    S,
    TokenRewards,
    TokenScores,
    Uid,
    reward,
)
from operators.records import Advantage, PolicyForward
from rlflow import Frozen, Loss, Record, RowsT, Tensor, Worker, f32, operator, roles
from rlflow.language.corrects import Difference

quality, weight = roles("quality weight")
Quality: TypeAlias = Annotated[Tensor, f32[B], quality]
TokenWeights: TypeAlias = Annotated[Tensor, f32[B, R], weight]
DenseScores: TypeAlias = Annotated[Tensor, f32[B, S], reward("raw")]  # one a token, not one a next-token position


class JudgeModel:
    """A model that grades answers."""


# --- rows ---------------------------------------------------------------------------------------------------------------
@operator(per="row")
def fluency(response_text: ResponseText) -> Quality: ...


@operator(per="row")
def length_of(response_mask: ResponseMask) -> Quality: ...


@operator(per="row")
def add_quality(
    token_level_rewards: TokenRewards, quality: Quality, response_mask: ResponseMask, *, factor: float = 0.1
) -> TokenRewards: ...


@operator(per="row")
def token_weights(log_probs: LogProbs, response_mask: ResponseMask) -> TokenWeights: ...


@operator(per="row")
def weigh(advantages: Advantages, weights: TokenWeights) -> Advantages: ...


@operator(per="row")
def dense_scores(input_ids: InputIds, attention_mask: AttentionMask) -> DenseScores: ...


@operator(per="row")
def shift(scores: DenseScores, response_mask: ResponseMask) -> TokenScores: ...


@operator(per="row")
def merge_scores(one: TokenScores, two: TokenScores) -> TokenScores: ...


# --- groups and batches -------------------------------------------------------------------------------------------------
@operator(per="group")
def rank_quality(quality: Quality, uid: Uid) -> Quality: ...


@operator(per="group")
def rank_advantage(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, power: float = 1.0) -> Advantage: ...


@operator(per="batch")
def whiten(advantages: Advantages, response_mask: ResponseMask) -> Advantages: ...


# --- row operators ------------------------------------------------------------------------------------------------------
@operator(per="row", rows="filter")
def drop_easy(rows: RowsT, template: PromptTemplate) -> RowsT: ...


@operator(per="group", rows="filter")
def keep_good(rows: RowsT, quality: Quality, uid: Uid, *, least: float = 0.0) -> RowsT: ...


@operator(per="batch", rows="permute")
def shuffle(rows: RowsT, *, seed: int = 0) -> RowsT: ...


@operator(per="batch", sink=True)
def report(scores: Annotated[Tensor, f32[B], reward("raw")], uid: Uid) -> dict[str, float]: ...


@operator(per="row", sink=True)
def report_log_probs(log_probs: LogProbs, response_mask: ResponseMask) -> dict[str, float]: ...


# --- workers ------------------------------------------------------------------------------------------------------------
class Judge(Worker):
    """Grades answers with a model of its own."""

    @operator(per="run")
    def load(self) -> Frozen[JudgeModel]: ...

    @operator(per="row")
    def grade(self, weights: Frozen[JudgeModel], response_text: ResponseText, answer: Answer) -> Quality: ...


# --- what is trained on -------------------------------------------------------------------------------------------------
class TeacherRows(Record):
    """What the distillation loss reads."""

    teacher_log_probs: RefLogProbs
    response_mask: ResponseMask


class WeightRows(Record):
    """Rows that carry a weight a token."""

    token_weights: TokenWeights


class UidRows(Record):
    """Rows that know their group."""

    uid: Uid


class ScoreRows(Record):
    """Rows that carry what the verifier said."""

    token_level_scores: TokenScores


class QualityRows(Record):
    """Rows that carry a grade."""

    quality: Quality


class distill(Loss[PolicyForward, TeacherRows]):  # noqa: N801 - a loss is written like the function it is
    """Pulls towards a teacher."""

    beta: float = 1.0

    @property
    def active(self) -> bool:
        return self.beta > 0

    @property
    def corrects(self) -> tuple[Difference, ...]:
        return ("policy",)  # whose rows they are does not matter to it


class imitate(Loss[PolicyForward, TeacherRows]):  # noqa: N801
    """The same, for rows of the policy that is trained only."""

    beta: float = 1.0


class weighted_entropy(Loss[PolicyForward, WeightRows]):  # noqa: N801
    """An entropy bonus with a weight a token."""

    coef: float = 0.01
