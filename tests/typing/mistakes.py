"""Each marked line must be reported by mypy and by pyright, and no other line. Never run."""
from operators.advantage import gae, grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.trainers import Torch, TorchCritic, TorchTeacher
from operators.loss import kl_penalty, ppo_clip, value_clip
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from pipelines.grpo import grpo
from rlflow import Feedback, Worker, operator, pipeline


class TrainRows(ModelRows, PpoRows):
    """What the forward and the loss read."""


class Bare(PpoRows):
    """What the loss reads, without what the forward reads."""


@pipeline
def mistakes(data: str) -> None:
    actor, critic, engine = Torch("actor", model="tiny"), TorchCritic("critic", model="tiny"), Embedded("engine", model="tiny")
    policy = Feedback("policy", init=actor.load())
    baseline = Feedback("baseline", init=critic.load())
    prompt = dispatch(dataset(data, tokenizer="tiny"), n=8)
    sample = engine.rollout(policy.served, prompt)
    ready = form_batch(sample, prompts=64)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)
    adv = grpo_advantage(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages,
    )
    micro = micro_pack(shard(rows, on=actor), max_tokens=1)
    trained = actor.train(policy.move, micro.loss(ppo_clip(0.2, 0.28)))
    policy.close(sync(trained, engine))
    # ---- mistakes ------------------------------------------------------------------------------
    engine.rollout(prompt, policy.served)                                    # E1 swapped
    integer_match(ready.response_text, ready.answer)                         # E2 missing
    integer_match(ready.response_txt, ready.answer, ready.response_mask)     # E3 misspelt field
    pad(rows, multipel=2)                                                    # E4 misspelt argument
    policy.close(adv)                                                        # E5 closed with a record
    policy.close(policy.current)                                             # E6 a version step of 0
    actor.train(policy.current, micro.loss(ppo_clip()))                      # E7 trains on a reading
    engine.rollout(policy.move, prompt)                                      # E8 rolls out from a move
    engine.rollout(policy.current, prompt)                                   # E9 rolls out from the owner's copy
    actor.log_probs(trained, ready.input_ids, ready.position_ids, ready.attention_mask)  # E10 scores with k + 1
    critic.values(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)  # E11 the critic with the policy's weights
    actor.train(policy.move, micro.loss(kl_penalty(0.1)))                    # E12 the record lacks ref_log_probs
    actor.train(policy.move, micro.loss(value_clip()))                       # E13 the critic's loss
    actor.train(policy.move, rows)                                           # E14 not packed
    rows.ref_log_probs                                                       # E15 no such field
    TrainRows(input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad, old_log_probs=old)  # E16 missing field
    TrainRows(ready.input_ids, ready.position_ids, ready.response_mask, ready.is_pad, old, adv.advantages)  # E17 positional record
    rows.advantages = old                                                    # E18 write
    pad(old, multiple=2)                                                     # E19 a field is not a record
    baseline.close(sync(trained, engine))                                    # E20 closes the critic with the policy
    sample.reward                                                            # E21 unknown field
    micro.advantages                                                         # E22 micro-batches are for training only
    actor.train(policy.move, micro_pack(Bare(response_mask=ready.response_mask, old_log_probs=old, advantages=old), max_tokens=1).loss(ppo_clip()))  # E23
    grpo_advantage(old, ready.response_mask, ready.uid, True)                # E24 configuration is keyword-only
    integer_match(ready.response_mask, ready.answer, ready.response_text)    # E25 text and tensor swapped
    teacher, reference = TorchTeacher("teacher", model="tiny"), Torch("reference", model="tiny")
    reference.log_probs(teacher.load(), ready.input_ids, ready.position_ids, ready.attention_mask)  # E32 a teacher's weights for a reference's
    teacher.log_probs(reference.load(), ready.input_ids, ready.position_ids, ready.attention_mask)  # E33 and the other way round
    Feedback("distilled", init=teacher.load()).close(trained)                # E34 a teacher is not trained
    form_batch(sample, prompts="64")                                         # E35 a count is an int
    form_batch(sample, prompts=64.0)                                         # E36 and no float


grpo(advantage=gae)                                                          # E26 needs values
grpo(prompt=3)                                                               # E27 misspelt parameter
grpo(group_size="8")                                                         # E28 wrong type


@operator(per="rows")                                                        # E29 misspelt per
def plain(x: int) -> int:
    return x


@operator(per="row", corrects=("lag",))                                      # E37 there is no such difference
def corrected(x: int) -> int:
    return x


@operator(per="row", corrects=True)                                          # E38 it says of what
def weighed(x: int) -> int:
    return x


Torch("actor", model="tiny", learning_rate=1e-3)                             # E30 misspelt option of a worker
Worker(3)                                                                    # E31 a name is a string
