"""On-policy distillation: grpo.py without a reward: a frozen teacher says of each sampled token how likely it finds it.

dataset → dispatch → rollout → form batch → the teacher's log-probs → train
             ↑                                                          │
             └───────────────────────── sync ──────────────────────────┘

The student says it more often where the teacher would, less where it would not: the reverse KL, on what the student itself samples.
Agarwal et al. 2024, GKD (arXiv:2306.13649). Rewards only measure: they are of held-out answers.
"""

from typing import Annotated

from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import entropy_bonus, opd
from operators.records import ModelRows, TeacherRows
from operators.sync import sync
from operators.trainers import TorchTeacher
from pipelines.parts import Options, balanced, evaluate, micro_batches, workers
from rlflow import pipeline


class TrainRows(ModelRows, TeacherRows):
    """What the forward and the losses read."""


@pipeline
def distillation(
    options: Options = Options(prompts=256, group_size=1, entropy=0.0),
    teacher: Annotated[str, "a checkpoint folder, of another run say; taught:DATA: the tiny model, taught DATA"] = "taught:digits.parquet",
) -> None:
    actor, engine, policy = workers(options)
    expert = TorchTeacher("teacher", model=teacher, learner=options.model, dp=options.dp)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    taught = expert.log_probs(expert.load(), ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        teacher_log_probs=taught,
    )  # fmt: skip
    micro = micro_batches(balanced(rows, options), actor, options)
    trained = actor.train(policy.move, micro.loss(opd(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
