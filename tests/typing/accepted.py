"""Right code that both checkers must accept, bodies of operators included. Never run."""
from functools import partial

from operators.advantage import grpo as grpo_advantage
from operators.advantage import rloo
from operators.fields import GroupSize, Policy, PromptCount, RankCount
from operators.loss import kl_penalty, ppo_clip
from operators.records import KlRows, ModelRows, PolicyForward, PpoRows
from pipelines.grpo import grpo
from rlflow import Frozen, Micro, Move, Next, Objective, Plan, Served, Site, Tensor, Weights, Worker, operator


class TrainRows(ModelRows, PpoRows, KlRows):
    """What the forward and the losses read."""


class Scorer(Worker):
    """A worker with an option and a state of its own."""

    def __init__(self, name: str, model: str, *, dp: int = 1) -> None:
        super().__init__(name, dp=dp)
        self.model = model

    def open(self, site: Site) -> None:
        super().open(site)
        self.rank = site.rank

    @operator(per="run")
    def load(self) -> Frozen[Policy]:
        return Frozen(self.name, "frozen", 0, self)

    @operator(per="micro")
    def train(self, weights: Move[Policy], objective: Objective[PolicyForward, TrainRows]) -> Next[Policy]:
        for micro_batches in objective.parts:
            for rows in micro_batches:
                forward = PolicyForward(log_probs=rows.old_log_probs, entropy=rows.old_log_probs)
                terms = [loss(forward, rows).sum() for loss in objective.losses if loss.active]
                del terms
        return Next(weights.name, "next", weights.version + 1, weights.owner)


@operator(per="batch", serves="engine")
def push(weights: Next[Policy], engine: Worker) -> Next[Policy]:
    holder: Scorer = weights.owner
    assert holder.model
    return weights


def version_of(weights: Weights[Policy], served: Served[Policy]) -> int:
    return max(weights.version, served.version)


def losses(rows: TrainRows) -> Objective[PolicyForward, TrainRows]:
    return Micro(rows, parts=((rows,),)).loss(ppo_clip(0.2, 0.28), kl_penalty(0.1))


def term(rows: TrainRows, forward: PolicyForward) -> Tensor:
    return ppo_clip(0.2)(forward, rows)


plans: list[Plan] = [
    grpo(),
    grpo(advantage=rloo),
    grpo(advantage=grpo_advantage, kl=0.1),
    grpo(advantage=partial(grpo_advantage, scale_by_std=False)),
    grpo().replace("grpo", rloo),
]


def counts(prompts: PromptCount, group_size: GroupSize, dp: RankCount) -> int:
    """To a type checker a count is an int, on both sides."""
    batch: int = prompts * group_size
    return counts(batch // group_size, 8, dp) + max(1, dp)
