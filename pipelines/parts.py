"""What the loops of this folder have alike, as grpo.py has it in full: a file beside it says in which operators it differs.

Common         what each of them may be told: `rlflow run pipelines/rloo.py --help`
Options        the same, of those with a data set and a reward
workers        the actor that trains, the engine that samples, the feedback that closes the ring
TrainRows      what a policy loss reads, put together by `train_rows`
balanced       pad → rebalance
micro_batches  shard → micro_pack
evaluate       held-out prompts, every so many versions
"""

from dataclasses import dataclass
from typing import Annotated

from operators.dataset import dataset
from operators.engines import Embedded
from operators.environment import Environment
from operators.fields import Advantages, GroupSize, OldLogProbs, Policy, PromptCount, RankCount, ResponseMask, TokenCount
from operators.records import ModelRows, PpoRows, Sample
from operators.reward import RewardFn, integer_match
from operators.rows import micro_pack, pad, rebalance, shard
from operators.trainers import Torch
from rlflow import Feedback, Micro, RowsT, Stale, Worker


@dataclass(frozen=True, kw_only=True)
class Common:
    """Flags of every loop; its own come after them, and it may have other defaults."""

    model: Annotated[str, "a checkpoint folder, or tiny: made from scratch"] = "tiny"
    prompts: Annotated[PromptCount, "prompts a batch"] = 32
    group_size: Annotated[GroupSize, "answers a prompt"] = 8
    dp: Annotated[RankCount, "processes that train, each a part of the rows"] = 1
    engines: Annotated[int, "processes that sample"] = 1
    mini_batches: Annotated[int, "optimizer steps a batch"] = 1
    lr: Annotated[float, "of AdamW"] = 1e-3
    entropy: Annotated[float, "weight of the entropy bonus; 0: off"] = 0.1
    max_tokens: Annotated[TokenCount, "padded tokens of a micro-batch"] = 16_384
    max_new_tokens: Annotated[TokenCount, "tokens of an answer at most"] = 2
    eval_every: Annotated[int, "versions between two evaluations; 0: never"] = 10
    eval_samples: Annotated[int, "answers to each held-out prompt"] = 1
    eval_temperature: Annotated[float, "of held-out answers; 0: greedy"] = 0.0


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Flags of a loop over a data set with answers, and a reward that compares with them."""

    data: Annotated[str, "a parquet file, or one of pipelines/data by its name"] = "digits.parquet"
    reward: Annotated[RewardFn, "judges an answer"] = integer_match
    held_out: Annotated[RewardFn | None, "judges held-out answers; default: the reward"] = None


def workers(options: Common, *, max_lag: int = 0, stale: Stale = "wait") -> tuple[Torch, Embedded, Feedback[Policy]]:
    """The actor, the engine, and the policy that goes round between them."""
    actor = Torch("actor", model=options.model, dp=options.dp, lr=options.lr)
    engine = Embedded("engine", model=options.model, max_new_tokens=options.max_new_tokens, replicas=options.engines)
    return actor, engine, Feedback("policy", init=actor.load(), max_lag=max_lag, stale=stale)


class TrainRows(ModelRows, PpoRows):
    """What the forward and the losses read."""


def train_rows(
    ready: Sample | ModelRows, *, old_log_probs: OldLogProbs, advantages: Advantages, response_mask: ResponseMask | None = None
) -> TrainRows:
    """What is trained on. response_mask: where it is not that of the sample, flag[B, R]."""
    __tracebackhide__ = True
    return TrainRows(
        input_ids=ready.input_ids,
        position_ids=ready.position_ids,
        response_mask=ready.response_mask if response_mask is None else response_mask,
        is_pad=ready.is_pad,
        old_log_probs=old_log_probs,
        advantages=advantages,
    )


def balanced(rows: RowsT, options: Common) -> RowsT:
    """So many rows that they divide by ranks and mini-batches, in an order in which the slices weigh the same."""
    rows = pad(rows, multiple=options.dp * options.mini_batches)
    return rebalance(rows, pieces=4 * options.dp, mini_batches=options.mini_batches)


def micro_batches(rows: RowsT, on: Worker, options: Common) -> Micro[RowsT]:
    """The rows of each rank of a worker, in micro-batches."""
    return micro_pack(shard(rows, on=on, mini_batches=options.mini_batches), max_tokens=options.max_tokens)


def evaluate(engine: Embedded, policy: Feedback[Policy], options: Options, environment: Environment | None = None) -> None:
    """Held-out prompts, answered by what the engine serves, over turns where there is an environment."""
    engine.evaluate(
        policy.served,
        dataset(options.data, split="test", tokenizer=options.model),
        reward=options.held_out or options.reward,
        every=options.eval_every,
        samples=options.eval_samples,
        temperature=options.eval_temperature,
        environment=environment,
    )
